"""The demo: a year of real flights through a real job, in one command.

Read ``delay_radar`` for the job and ``run`` for the order of things. ``flights`` reads the
data, ``feed`` appends it, ``live`` and ``chart`` show it, ``check`` computes it once more.
"""
