"""``headrace ui``: one web application for a whole home. ``app`` has its routes, ``access`` the door.

The page is in ``static``; it asks nothing of any other host.
"""
