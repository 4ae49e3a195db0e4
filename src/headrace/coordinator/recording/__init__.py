"""Epochs as files: what one began with and what it read, for a test that runs it again."""
