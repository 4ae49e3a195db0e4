"""``headrace ui``: one web application for a whole home.

``app`` has its routes, ``access`` the door, ``live`` the charts that follow their streams.
The page is in ``static``; it asks nothing of any other host.
"""
