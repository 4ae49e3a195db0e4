"""When a backfill in the place of the live job is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from headrace.cli.running.scaling import Scaling
from headrace.coordinator.joined import JoinedParts
from headrace.coordinator.loop import Control
from headrace.coordinator.summary import EpochSummary


class TwoParts:
    """Parts of which the second has to read what the first sends."""

    state = SimpleNamespace(ended=False)

    def __init__(self) -> None:
        self.behind = {"first": 5, "second": 0}

    def lags(self) -> dict[str, int]:
        return dict(self.behind)


def done(job: str, lag: int) -> EpochSummary:
    return EpochSummary(1, 5, 1.0, {}, {}, 0, lag, 0, 0, 0, ended=False, job=job)


def test_a_run_of_parts_has_caught_up_when_the_last_one_has() -> None:
    parts, control = TwoParts(), Control()
    scaling = Scaling(ends=True)
    scaling.begin(cast("JoinedParts", parts), control)

    parts.behind = {"first": 0, "second": 5}
    scaling.observe(done("first", 0), control)
    assert not control.stop.is_set()

    parts.behind = {"first": 0, "second": 0}
    scaling.observe(done("second", 0), control)
    assert scaling.has_caught_up
    assert control.stop.is_set()
