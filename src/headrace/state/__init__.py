"""Keyed state of tasks: stores, changelog segments, snapshots, and the one ``catch_up``.

Read ``task_state`` for the life of a task's state over an epoch, ``backend`` for what
holds committed data, ``segment`` for the form of files, ``objects`` for what user code sees.
"""
