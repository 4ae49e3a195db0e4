"""``headrace jobs``: jobs that exist, and what is done to them from outside."""
