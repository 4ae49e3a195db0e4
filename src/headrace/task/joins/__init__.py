"""Joins of streams, as they run."""
