"""When a snapshot pays: what a rebuild reads without one, against what writing it costs.

``cost_model`` has the paper's comparison of full checkpoints with a changelog. Here both
exist, so the question is when to fold one into the other: a rebuild reads the last snapshot
and all segments since, or a new snapshot alone.
"""

from __future__ import annotations

from dataclasses import dataclass

FILE_COST_BYTES = 64 << 10
"""What opening one more file costs, in bytes that could be read in that time."""

MINIMUM_GAIN_BYTES = 4 << 20
"""Below this a rebuild is quick either way, and a snapshot only costs an fsync."""


@dataclass(frozen=True)
class SnapshotDecision:
    """Whether to write a snapshot now, and the figures behind it, in bytes.

    ``replay`` is what a rebuild reads now, ``after`` what it would read after a snapshot,
    ``cost`` what writing one takes.
    """

    replay: int
    after: int
    cost: int

    @property
    def gain(self) -> int:
        """What each later rebuild would save."""
        return self.replay - self.after

    @property
    def take(self) -> bool:
        """Say whether one rebuild saves more than the snapshot costs."""
        return self.gain > self.cost + MINIMUM_GAIN_BYTES

    def __str__(self) -> str:
        """Return one line for people."""
        verdict = "snapshot" if self.take else "changelog"
        return (
            f"{verdict}: a rebuild reads {self.replay / 1e6:.1f} MB, after a snapshot "
            f"{self.after / 1e6:.1f} MB, writing it costs {self.cost / 1e6:.1f} MB"
        )


def snapshot_decision(
    segment_bytes: int, snapshot_bytes: int, state_bytes: int, files: int
) -> SnapshotDecision:
    """Weigh a snapshot against replaying.

    State that only grows gains nothing by it. State that is overwritten is snapshotted about
    each time its changelog outgrew it.

    Args:
        segment_bytes: changelog since the last snapshot.
        snapshot_bytes: size of the last snapshot, 0 for none.
        state_bytes: live entries, which a new snapshot would hold.
        files: that all this is spread over.
    """
    replay = segment_bytes + snapshot_bytes + files * FILE_COST_BYTES
    # What is live was written since the last snapshot, or stands in it.
    after = min(state_bytes, segment_bytes + snapshot_bytes) + FILE_COST_BYTES
    return SnapshotDecision(replay, after, after)
