"""A crash before and after every step of every order: what is lost and doubled, counted.

The Counter Node of the paper on stream processing at Facebook: each record is counted by its key
and makes one result. The state tells which records were lost to it or counted twice, the output
whose results are missing or there twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.changes import record
from tests.support.limits import limit
from tests.support.plans import ORDERS, CommitStep, Semantics
from tests.support.soak import crossed, examples

import headrace as hr
from headrace import Job
from headrace.errors import InvalidInputError, NotOwnerError
from headrace.testing import TestDriver, call_at

LEAST, MOST, EXACTLY = "at_least_once", "at_most_once", "exactly_once"
CELLS = [(state.value, output.value) for state, output in ORDERS]
BEGINS, DONE = "commit.step_begins", "commit.step_done"


class Count:
    """Counts the records of each key, and sends the number of each record."""

    def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("n")
        number = store.get(message.key, 0) + 1
        store.put(message.key, number)
        context.emit({"id": message.id, "key": message.key, "number": number})


RETURNS = {"id": int, "key": int, "number": int}


def counter(state: str, *outputs: str, store: str = "memory") -> Job:
    """The Counter Node, with one output of each of these semantics."""
    stores = [hr.store("n", int, store)]

    @hr.job("counter", state_semantics=state)
    def made(g: hr.Graph) -> None:
        counts = g.input("in").partition_by("key").process(Count, stores, returns=RETURNS)
        for output in outputs:
            counts.send_to(g.output(output, semantics=output))

    return made


def stateless(*outputs: str) -> Job:
    @hr.job("stateless")
    def made(g: hr.Graph) -> None:
        for output in outputs:
            g.input("in", name=output).map("id").send_to(g.output(output, semantics=output))

    return made


class Found(NamedTuple):
    """How many records, or results."""

    lost: int
    doubled: int

    @property
    def seen(self) -> tuple[bool, bool]:
        return self.lost > 0, self.doubled > 0


class Run:
    """A driver, and what it was fed."""

    def __init__(self, driver: TestDriver) -> None:
        self.driver, self.next = driver, 0
        driver.create("in", {"id": pa.int64(), "key": pa.int64()}, partitions=2)

    def feed(self, count: int) -> None:
        rows = [{"id": n, "key": n % 5} for n in range(self.next, self.next + count)]
        for partition in (0, 1):
            self.driver.feed("in", rows[partition::2], partition)
        self.next += count

    def state(self) -> Found:
        """Compare what is counted with what was fed, key by key."""
        counted = self.driver.store("n")
        lost = doubled = 0
        for key in range(5):
            off = counted.get(key, 0) - len(range(key, self.next, 5))
            lost, doubled = lost + max(0, -off), doubled + max(0, off)
        return Found(lost, doubled)

    def output(self, stream: str) -> Found:
        """Count the results that are missing and those that are there again."""
        ids = Counter(row["id"] for row in self.driver.output(stream))
        lost = self.next - len(ids)
        return Found(lost, ids.total() - len(ids))


@contextmanager
def running(job: Job, **knobs: Any) -> Iterator[Run]:
    with TestDriver(job, **{"tasks": 2, **knobs}) as driver:
        yield Run(driver)


def expected(cell: tuple[str, str], done: int) -> tuple[tuple[bool, bool], tuple[bool, bool]]:
    """What a crash after the first ``done`` acts that follow the results does.

    Worked out from the order alone: the next driver reads again from the saved offsets.
    """
    state, output = map(Semantics, cell)
    acts = ORDERS[state, output][1:]
    happened = {step for joined in acts[:done] for step in joined}
    is_saved, is_read, is_out = (
        step in happened for step in (CommitStep.STATE, CommitStep.OFFSETS, CommitStep.OUTPUT)
    )
    return (is_read and not is_saved, is_saved and not is_read), (
        is_read and not is_out,
        is_out and not is_read,
    )


PASSES = [
    (cell, point, number + 1)
    for cell, order in ORDERS.items()
    for number in range(len(order) - 1)
    for point in (BEGINS, DONE)
]


@pytest.mark.parametrize(("cell", "point", "nth"), PASSES)
def test_a_crash_at_every_step_loses_and_doubles_what_the_order_says(
    cell: tuple[Semantics, Semantics], point: str, nth: int
) -> None:
    """Nothing more than that, in the cells that promise it; and really that, in the others."""
    state, output = cell[0].value, cell[1].value
    with running(counter(state, output)) as run:
        run.feed(50)
        run.driver.run()
        run.feed(40)
        assert run.driver.advance_with_crash(point, nth)
        run.feed(30)
        run.driver.finish()
        found = run.state().seen, run.output(output).seen
        done = nth - 1 if point == BEGINS else nth
        assert found == expected((state, output), done)
        assert run.state() in {(0, 0), (40, 0), (0, 40)}, "an epoch's records share their fate"


@pytest.mark.parametrize(("cell", "nth"), crossed(CELLS, [1, 2]))
def test_an_older_driver_may_win_a_manifest_after_another_has_begun(
    cell: tuple[str, str], nth: int
) -> None:
    """What the second of two manifests names is there, although whoever came has swept since."""
    with running(counter(*cell, store="rocksdb")) as run:
        run.feed(50)
        run.driver.run()
        run.feed(40)
        older = run.driver.parts[0]
        with call_at("commit.written", run.driver.start, nth), suppress(NotOwnerError):
            older.advance()
        run.feed(30)
        run.driver.crash()
        run.driver.finish()
        for semantics, found in zip(cell, (run.state(), run.output(cell[1])), strict=True):
            assert semantics == MOST or found.lost == 0
            assert semantics == LEAST or found.doubled == 0


def test_who_loses_a_manifest_to_an_older_driver_sends_nothing_of_its_own() -> None:
    """The older one froze with it in its hands, and has sent its output when the newer commits."""
    with running(counter(EXACTLY, MOST, store="rocksdb")) as run:
        run.feed(50)
        run.driver.run()
        run.feed(40)
        run.driver.advance()
        newest = max((run.driver.storage / "manifests").glob("*.json"))
        late = newest.rename(run.driver.home / "late")
        run.driver.crash()
        run.driver.start()
        with call_at("commit.written", lambda: late.rename(newest)):
            run.driver.advance()
        assert not late.exists()
        run.feed(30)
        run.driver.finish()
        assert run.state() == run.output(MOST) == (0, 0)


def test_the_orders_lose_and_double_only_where_they_may() -> None:
    """Over all crashes of a cell: zero where promised, and shown where not."""
    for cell, order in ORDERS.items():
        ends = [expected((cell[0].value, cell[1].value), n) for n in range(len(order))]
        for semantics, part in zip(cell, (0, 1), strict=True):
            may_lose = any(end[part][0] for end in ends)
            may_double = any(end[part][1] for end in ends)
            assert may_lose == (semantics == MOST), cell
            assert may_double == (semantics == LEAST), cell


@pytest.mark.parametrize(
    ("cell", "point"),
    crossed(CELLS, ["slot.ran", "slot.segment_written", "slot.output_written"]),
)
def test_a_dead_slot_alone_loses_and_doubles_nothing(cell: tuple[str, str], point: str) -> None:
    """Work before the commit has no effect that is seen, so it may be done again."""
    with running(counter(*cell, store="rocksdb")) as run:
        for _ in range(3):
            run.feed(30)
            assert run.driver.advance_with_crash(point)
        run.driver.finish()
        assert (run.state(), run.output(cell[1])) == (Found(0, 0), Found(0, 0))


@pytest.mark.parametrize(
    ("point", "memory_bus"),
    crossed(["output.emitted", "commit.written", "epoch.output_published"], [True, False]),
)
def test_outputs_of_all_semantics_in_one_job(point: str, memory_bus: bool) -> None:
    """The state is exact, and so is one output; the others keep to their own."""
    with running(counter(EXACTLY, LEAST, MOST, EXACTLY), memory_bus=memory_bus) as run:
        for nth in range(1, 8):
            run.feed(20)
            run.driver.advance_with_crash(point, nth)
        run.driver.finish()
        assert run.state() == run.output(EXACTLY) == (0, 0)
        least, most = run.output(LEAST), run.output(MOST)
        assert least.lost == most.doubled == 0
        assert bool(least.doubled) == (point != "epoch.output_published")
        assert bool(most.lost) == (point != "commit.written")


@pytest.mark.parametrize("point", [BEGINS, DONE, "output.emitted"])
def test_parts_have_outputs_of_their_own_semantics(point: str) -> None:
    """What goes from part to part is there once, whatever becomes of the outputs."""

    @hr.job("counter")
    def made(g: hr.Graph) -> None:
        rows = g.input("in")
        rows.send_to(g.output("sent", semantics=LEAST))
        keyed = rows.partition_by("key", via="bus", name="in.by_key")
        counts = keyed.process(Count, {"n": int}, returns=RETURNS)
        counts.send_to(g.output(MOST, semantics=MOST))

    with running(made) as run:
        for nth in (1, 2, 3):
            run.feed(20)
            for _ in run.driver.parts:
                run.driver.advance_with_crash(point, nth)
            run.driver.run()
        run.driver.finish()
        assert run.state() == (0, 0)
        assert run.output(MOST).doubled == run.output("sent").lost == 0
        assert run.output(MOST).lost + run.output("sent").doubled > 0


@pytest.mark.parametrize("point", [BEGINS, DONE])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_job_without_state_has_semantics_of_output_only(point: str, nth: int) -> None:
    with running(stateless(LEAST, MOST, EXACTLY)) as run:
        run.feed(20)
        run.driver.run()
        run.feed(20)
        assert run.driver.advance_with_crash(point, nth)
        run.driver.finish()
        done = nth - 1 if point == BEGINS else nth
        assert run.output(LEAST) == (0, 20 if done == 1 else 0)
        assert run.output(EXACTLY) == (0, 0)
        assert run.output(MOST) == (20 if done == 2 else 0, 0)


Crash = tuple[str, int]
CRASHES = st.lists(
    st.tuples(
        st.sampled_from(
            [BEGINS, DONE, "commit.written", "commit.published", "output.emitted", "slot.ran"]
        ),
        st.integers(1, 4),
    ),
    max_size=5,
)


@pytest.mark.parametrize("cell", CELLS)
@settings(max_examples=examples(5))
@given(crashes=CRASHES, sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4))
def test_any_crashes_and_epoch_sizes_keep_what_is_promised(
    cell: tuple[str, str], crashes: list[Crash], sizes: list[int]
) -> None:
    with running(counter(*cell), max_rows=17) as run:
        for size in sizes:
            run.feed(size)
            for point, nth in crashes:
                run.driver.advance_with_crash(point, nth)
        run.driver.finish()
        for semantics, found in zip(cell, (run.state(), run.output(cell[1])), strict=True):
            assert semantics == MOST or found.lost == 0
            assert semantics == LEAST or found.doubled == 0


WINDOWED = [(LEAST, LEAST), (MOST, MOST)]


@pytest.mark.parametrize(("state", "output"), WINDOWED)
@pytest.mark.parametrize("point", [BEGINS, DONE])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_windows_count_as_often_as_promised(state: str, output: str, point: str, nth: int) -> None:
    """A record that counts again never reopens a window; one that was closed is not closed anew."""

    @hr.job("windows", state_semantics=state, output_semantics=output)
    def made(g: hr.Graph) -> None:
        events = g.input("in", time="at").partition_by("key")
        events.window(hr.tumbling("10ms"), n=hr.agg.count()).send_to(g.output("out"))

    with TestDriver(made, tasks=2) as driver:
        driver.create("in", {"key": pa.int64(), "at": pa.int64()}, partitions=1)
        for begin in (0, 25, 50, 75):
            driver.feed("in", [{"key": n % 3, "at": n} for n in range(begin, begin + 25)])
            if begin == 50:
                assert driver.advance_with_crash(point, nth)
            else:
                driver.advance()
        driver.finish()
        seen: dict[tuple[int, int], list[int]] = {}
        for row in driver.output("out"):
            place = (row["key"], row["window_start"].timestamp() * 1000 // 10)
            seen.setdefault(place, []).append(row["n"])
        true = Counter((n % 3, n // 10) for n in range(100))
        for place, count in true.items():
            found = seen.get(place, [])
            if state == LEAST:
                assert found
                assert max(found) >= count
            else:
                assert len(found) <= 1
                assert sum(found) <= count


def test_a_job_that_dies_between_the_manifests_of_its_end_has_not_ended() -> None:
    """The offsets of the end are saved, and nothing was sent yet: the windows are still closed."""

    @hr.job("windows", state_semantics=MOST, output_semantics=MOST)
    def made(g: hr.Graph) -> None:
        events = g.input("in", time="at").partition_by("key")
        events.window(hr.tumbling("10ms"), n=hr.agg.count()).send_to(g.output("out"))

    with TestDriver(made) as driver:
        driver.create("in", {"key": pa.int64(), "at": pa.int64()}, partitions=1)
        driver.feed("in", [{"key": 1, "at": at} for at in range(5)])
        driver.coordinator.end_at_present()
        driver.advance()
        assert driver.advance_with_crash("commit.published")
        assert not driver.coordinator.has_ended
        driver.finish()
        assert [row["n"] for row in driver.output("out")] == [5]
        assert driver.coordinator.has_ended


@pytest.mark.parametrize("cell", CELLS)
def test_without_a_crash_all_are_the_same(
    cell: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over many epochs, with bases of the log, sweeps and a change of the number of tasks."""
    limit(monkeypatch, base_every=3)  # halves are bases, too
    with running(counter(*cell), tasks=2, max_rows=5, keep_epochs=3) as run:
        run.feed(60)
        run.driver.run()
        run.driver.coordinator.rescale(4)
        run.feed(30)
        run.driver.finish()
        assert (run.state(), run.output(cell[1])) == (Found(0, 0), Found(0, 0))
        assert run.driver.coordinator.has_ended


@pytest.mark.parametrize("state", [LEAST, MOST])
def test_an_epoch_of_two_manifests_is_recorded_by_either(state: str, tmp_path: Path) -> None:
    """And not at all when a crash cut it between the two."""
    job, path = counter(state, state), tmp_path / "epoch"
    with running(job) as run:
        run.feed(10)
        run.driver.run()
        run.feed(10)
        run.driver.run()
        for epoch in (3, 4):
            assert record(run.driver, path, epoch).epoch == 3
            with TestDriver.replay(job, path) as replay:
                replay.advance()
                assert replay.store("n") == dict.fromkeys(range(5), 4)
                assert sorted(row["id"] for row in replay.output(state)) == list(range(10, 20))
        run.feed(10)
        assert run.driver.advance_with_crash("commit.published")
        with pytest.raises(InvalidInputError, match="cut between state and offsets"):
            record(run.driver, path, 5)


def test_semantics_may_change_between_two_runs(tmp_path: Path) -> None:
    """What was begun under one order is ended under it, or read again as it says."""
    cells = [*CELLS, CELLS[0]]
    fed = 0
    for number, cell in enumerate(cells):
        with TestDriver(
            counter(cell[0], *{cell[1]}), tasks=3, home=tmp_path, memory_bus=False
        ) as d:
            if number == 0:
                run = Run(d)
            run.driver = d
            run.feed(20)
            d.run()
            fed += 20
            assert run.state() == (0, 0)
    assert fed == run.next
