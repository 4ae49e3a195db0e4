"""The ``headrace`` command: ``main`` puts it together, one module for each group of commands.

Nothing here loads Spark, Arrow or Polars before a command needs it.
"""
