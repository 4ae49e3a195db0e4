"""The task runtime: operators on Arrow batches, timers, exchange files, one slot's epoch.

Knows no Spark. Read ``slot`` first, then ``stage_task`` and the nodes that it builds.
"""
