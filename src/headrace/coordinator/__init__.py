"""The driver's side of a job: epochs, manifests, the commit log, placement, publishing.

Read ``coordinator`` first; ``epoch_ranges``, ``placement`` and ``manifest`` are pure functions.
``inspection`` reads jobs from files alone; ``operations`` is what commands do to whole jobs.
"""

from __future__ import annotations
