"""The Samza paper's model of what full checkpoints and a changelog cost (its section 5).

Either way makes data, in bytes a second: a checkpoint ``state_size / interval``, a changelog
``change_rate * entry_size``. They are equal at the *break-even* change rate

    change_rate = state_size / (interval * entry_size)

and below it the changelog makes less. The paper prints two numbers that do not follow from
this: for 100 TB, 20 minutes and 10 B it says about 10 trillion changes a second, where the
formula gives 8.3 billion; and it says that 100 GB in entries of 10 B are about 10 million
entries, which are 10 billion. Its figure and the rest of its text agree with the formula.
"""

from __future__ import annotations

from dataclasses import dataclass

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12

PAPER_STATES = (100 * TB, 100 * GB)
PAPER_ENTRIES = (10, KB)
PAPER_INTERVALS_S = (600.0, 5400.0)
PAPER_RATES = (35_000.0, 10_000_000.0)
"""What Figure 7 spans; the rates are ten times those of the paper's stateful jobs (Table 1)."""


def break_even_rate(state_bytes: float, interval_s: float, entry_bytes: float) -> float:
    """Return the changes a second at which both ways make the same data; all are above 0."""
    return state_bytes / (interval_s * entry_bytes)


@dataclass(frozen=True)
class CostModel:
    """The model with one job's figures.

    Args:
        state_bytes: the whole state.
        change_rate: changed entries a second.
        entry_bytes: of one change, on average.
    """

    state_bytes: float
    change_rate: float
    entry_bytes: float

    @property
    def changelog_rate(self) -> float:
        """Bytes a second that the changelog makes."""
        return self.change_rate * self.entry_bytes

    def checkpoint_rate(self, interval_s: float) -> float:
        """Bytes a second that a full checkpoint at each interval makes."""
        return self.state_bytes / interval_s

    def break_even_rate(self, interval_s: float) -> float | None:
        """Changes a second at which both are equal; ``None`` where entries have no size."""
        if not self.entry_bytes:
            return None
        return break_even_rate(self.state_bytes, interval_s, self.entry_bytes)

    @property
    def break_even_interval_s(self) -> float | None:
        """Seconds between checkpoints at which both are equal; ``None`` without changes."""
        return self.state_bytes / self.changelog_rate if self.changelog_rate else None

    def prefers_changelog(self, interval_s: float) -> bool:
        """Say whether the changelog makes no more data than checkpoints at that interval."""
        return self.changelog_rate <= self.checkpoint_rate(interval_s)
