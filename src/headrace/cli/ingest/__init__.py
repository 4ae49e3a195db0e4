"""Rows out of files and pipes, typed by a stream's schema."""
