"""When to write a snapshot instead of keeping all changelog segments.

The Samza paper (its section 5, Table 3, Figure 7) compares the data each way makes: full
checkpoints ``state_size / interval``, a changelog ``change_rate * entry_size``. Over the
time since the last snapshot, the first is ``state_bytes``, written once now, and the
second is ``segment_bytes``. Here both exist, so the question is when a snapshot pays: a
rebuild reads the last snapshot and all segments since, or the new snapshot alone.
"""

from __future__ import annotations

from dataclasses import dataclass

FILE_COST_BYTES = 64 << 10
"""What opening one more file costs, in bytes that could be read in that time."""

MAXIMUM_SEGMENTS = 1000
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
        """Return one line for ``explain``."""
        verdict = "snapshot" if self.take else "changelog"
        return (
            f"{verdict}: a rebuild reads {self.replay / 1e6:.1f} MB, after a snapshot "
            f"{self.after / 1e6:.1f} MB, writing it costs {self.cost / 1e6:.1f} MB"
        )


def snapshot_decision(
    segment_bytes: int, snapshot_bytes: int, state_bytes: int, segments: int = 0
) -> SnapshotDecision:
    """Weigh a snapshot against replaying.

    State that only grows is never rewritten: its changelog is the state. State that is
    overwritten is snapshotted about each time its changelog outgrew it.

    Args:
        segment_bytes: changelog since the last snapshot.
        snapshot_bytes: size of the last snapshot, 0 for none.
        state_bytes: live entries, which a new snapshot would hold; an estimate that counts
            entries in memory once for each time they were overwritten.
        segments: files that the changelog is spread over.
    """
    files = segments + (1 if snapshot_bytes else 0)
    replay = segment_bytes + snapshot_bytes + files * FILE_COST_BYTES
    # What is live was written since the last snapshot, or stands in it.
    after = min(state_bytes, segment_bytes + snapshot_bytes) + FILE_COST_BYTES
    return SnapshotDecision(replay, after, after)


def should_snapshot(
    segment_bytes: int, snapshot_bytes: int, state_bytes: int, segments: int = 0
) -> bool:
    """Say whether replaying costs more than writing a snapshot; see ``snapshot_decision``.

    Very many segments end in one whatever they cost, for each manifest base names them all.
    """
    if segments >= MAXIMUM_SEGMENTS:
        return True
    return snapshot_decision(segment_bytes, snapshot_bytes, state_bytes, segments).take
