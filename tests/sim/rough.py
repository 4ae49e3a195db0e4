"""A log fed in parts, with something rough between them, for comparisons with a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from hypothesis import strategies as st
from tests.sim.window_model import PARTITIONS, Record, feed
from tests.sim.window_model import create as create_input
from tests.support.limits import limit

import headrace as hr
from headrace.testing import TestDriver

POINTS = (
    "slot.caught_up",
    "slot.ran",
    "slot.exchange_written",
    "slot.segment_written",
    "epoch.level_done",
    "commit.written",
    "commit.published",
)
SMALL: dict[str, float] = {
    "totals_flush_rows": 3,
    "totals_fold_rows": 1,
    "partial_take_rows": 3,
    "chunk_rows": 3,
    "exchange_frame_rows": 3,
}
records = st.builds(
    Record,
    st.integers(0, PARTITIONS - 1),
    st.sampled_from(["a", "b", None]),
    st.integers(-5, 5),
    st.integers(-30, 30),
)
Feed = Callable[[TestDriver, int, int], None]


@contextmanager
def played(
    job: hr.Job,
    rows: int,
    data: Any,
    create: Callable[[TestDriver], None],
    feed: Feed,
    step: Callable[[TestDriver, Any], None] | None = None,
) -> Iterator[TestDriver]:
    """Give a driver that has read a log to its end, in any epochs, in batches of a few rows.

    Args:
        job: that is run.
        rows: of the log.
        data: of Hypothesis.
        create: makes the streams.
        feed: appends the rows of the log from one to before another.
        step: what comes between two feeds; by default ``rough_step``.
    """
    cuts = sorted(data.draw(st.lists(st.integers(0, rows), max_size=5)))
    max_rows = data.draw(st.sampled_from([1, 4, 1000]))
    with (
        pytest.MonkeyPatch.context() as patch,
        TestDriver(job, tasks=2, key_groups=8, max_rows=max_rows) as driver,
    ):
        if data.draw(st.booleans()):
            limit(patch, **SMALL)
        create(driver)
        for begin, end in zip([0, *cuts], [*cuts, rows], strict=True):
            feed(driver, begin, end)
            if end < rows:
                (step or rough_step)(driver, data)
        driver.finish()
        yield driver


def played_log(job: hr.Job, log: Sequence[Record], data: Any) -> AbstractContextManager[TestDriver]:
    """Do that for a log of the window models."""
    return played(
        job, len(log), data, create_input, lambda driver, begin, end: feed(driver, log[begin:end])
    )


def rough_step(driver: TestDriver, data: Any) -> None:
    """Go on in one of several ways, most of them rough."""
    steps = ["advance", "run", "restart", "lose disk", "rescale", "crash", "crash"]
    step = data.draw(st.sampled_from(steps))
    if step == "run":
        driver.run()
    elif step == "rescale":
        driver.advance()
        driver.coordinator.rescale(data.draw(st.integers(1, 3)))
    elif step == "crash":
        driver.advance_with_crash(data.draw(st.sampled_from(POINTS)))
    else:
        driver.advance()
        if step != "advance":
            driver.crash(lose_hosts=[0] if step == "lose disk" else [])
