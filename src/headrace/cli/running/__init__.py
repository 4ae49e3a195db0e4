"""A run on the screen: what it did so far, and how that is shown."""
