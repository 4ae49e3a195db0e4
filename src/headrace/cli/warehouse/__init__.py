"""``headrace warehouse``: tables that jobs write by day."""
