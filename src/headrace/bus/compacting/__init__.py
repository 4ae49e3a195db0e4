"""Compacted streams: the last record of each key, below what readers hold."""
