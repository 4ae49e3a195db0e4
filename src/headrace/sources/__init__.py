"""Inputs that settings put in the place of a stream: files, days of a table, a range of a stream.

``sourced.SourcedBus`` answers for them as a bus does for streams, so that everything after it is
the same: offsets, epochs, recovery. The modules that read JSON lines and CSV serve
``headrace bus append`` as well.
"""
