"""What an epoch was planned to be, as data: enough to run it again, elsewhere or later.

A driver leaves it behind when an epoch fails by what it reads, or by the user's code; then
``jobs replay`` can record the very epoch that failed, although it was never committed.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from headrace.coordinator.creation import with_positions
from headrace.coordinator.epoch import EpochRun
from headrace.coordinator.manifest import InputPosition, JobState
from headrace.coordinator.placement import Slot
from headrace.errors import HeadraceError, UnavailableError
from headrace.files import Files
from headrace.plan.stages import JobPlan
from headrace.task.orders import InputRange

FAILED = "failed-epoch.json"


class EpochPlan(msgspec.Struct, frozen=True):
    """The hidden inputs of an epoch, beside the state before it and the rows that it reads.

    ``watermarks`` are those that source stages reached, where the epoch is over and they are
    known; ``added`` positions of partitions that came; ``max_bytes`` bounds what is read of all
    ranges. Only the keyed tasks ``only`` run, where it names some.
    """

    epoch: int
    time_ms: int
    ranges: list[InputRange]
    ended: bool = False
    ends: dict[str, list[int]] = {}
    rested: dict[str, dict[int, int]] = {}
    tables: dict[str, list[int]] = {}
    added: dict[str, dict[int, InputPosition]] = {}
    watermarks: dict[str, int] = {}
    max_bytes: int | None = None
    only: tuple[str, ...] | None = None

    @classmethod
    def of(cls, run: EpochRun, before: JobState) -> EpochPlan:
        """Return the plan of an epoch that has run, or failed, after a committed state."""
        return cls(
            epoch=run.epoch,
            time_ms=run.time_ms,
            ranges=run.ranges,
            ended=run.ended,
            ends={name: list(ends) for name, ends in run.ends.items()},
            rested=run.rested,
            tables=run.tables,
            added={
                name: {p: at for p, at in positions.items() if p not in before.inputs.get(name, {})}
                for name, positions in run.state.inputs.items()
            },
            max_bytes=run.max_bytes,
        )

    def run(
        self, plan: JobPlan, state: JobState, slots: list[Slot], generation: int, digest: str
    ) -> EpochRun:
        """Return the epoch, to be run once more after the state before it."""
        return EpochRun(
            plan,
            with_positions(state, self.added),
            slots,
            self.ranges,
            generation,
            digest,
            self.time_ms,
            ended=self.ended,
            tables=self.tables,
            ends=self.ends,
            rested=self.rested,
            inputs={name: dict(positions) for name, positions in self.added.items()},
            kept_from=state.kept_from,
            max_bytes=self.max_bytes,
            known=self.watermarks,
            only=None if self.only is None else frozenset(self.only),
        )


class FailedEpoch(msgspec.Struct, frozen=True):
    """An epoch that was not committed, and the error that it ended with."""

    lineage: str
    plan: EpochPlan
    code: str
    kind: str
    message: str


_DECODER = msgspec.json.Decoder(FailedEpoch)


def save_failed(
    root: Path, run: EpochRun, before: JobState, error: HeadraceError, files: Files, unique: str
) -> None:
    """Leave behind what a failed epoch was; nothing where the same epoch may do when tried again.

    Args:
        root: of the job's storage.
        run: the epoch.
        before: the last committed state.
        error: that it ended with.
        files: the file system.
        unique: a name part that no other writer uses.
    """
    if isinstance(error, UnavailableError):
        return
    kind = type(error).__name__
    plan = EpochPlan.of(run, before)
    found = FailedEpoch(before.lineage, plan, error.code, kind, error.message)
    with contextlib.suppress(OSError):  # the error itself is what counts
        files.replace(root / FAILED, msgspec.json.encode(found), unique)


def load_failed(root: Path, state: JobState, files: Files) -> FailedEpoch | None:
    """Return how the epoch after a state failed last; ``None`` when it is not known to have."""
    try:
        found = _DECODER.decode(files.read(root / FAILED))
    except (OSError, msgspec.DecodeError):
        return None
    is_next = (found.lineage, found.plan.epoch) == (state.lineage, state.epoch + 1)
    return found if is_next else None
