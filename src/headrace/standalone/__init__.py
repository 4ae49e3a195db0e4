"""Jobs inside a user's own process, without Spark; several processes can share one.

``running`` is what users call. ``slots`` runs orders here, in threads or child processes;
``group`` knows the processes that have joined, ``election`` which of them drives.
"""
