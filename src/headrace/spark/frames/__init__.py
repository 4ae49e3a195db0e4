"""Streams as Spark DataFrames: the data source ``headrace``, for reading and for writing.

Read ``source`` first. ``staging`` is how rows that Spark's tasks have get into a stream once.
"""
