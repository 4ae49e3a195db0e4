"""Functions of the user: called for each message or batch, and what they may not do."""
