"""The driver's side of a job: epochs, manifests, the commit log, placement, publishing.

Read ``coordinator`` first; ``planning``, ``placement`` and ``manifest`` are pure functions.
"""
