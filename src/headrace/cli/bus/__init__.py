"""``headrace bus``: streams made, filled, looked at and changed."""
