"""Spark's place: sessions, placed slots, the streaming query and the run of a job.

The only package that imports ``pyspark``. Read ``run`` first.
"""
