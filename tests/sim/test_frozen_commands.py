"""Commands, and some acts of drivers, that freeze and wake when others have gone on without them.

What an older driver's single acts would destroy is set up here so that they would: many manifests
to prune, files to sweep that a savepoint has, an answer that somebody waits for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.sim.test_frozen_acts import Chain, OnHost, make
from tests.support.changes import (
    begin_from,
    begin_next_run,
    conclude_run,
    forget_secrets,
    leave_secrets,
    remove,
    rescale,
    reset,
    rewind,
    save,
    save_running,
    seize,
    with_settings,
)
from tests.support.limits import MERGE_OFTEN, limited
from tests.support.soak import more

import headrace as hr
from headrace.errors import HeadraceError, NotOwnerError
from headrace.testing import TestDriver, call_at


def set_back(driver: TestDriver) -> None:
    reset(driver)


def go_back(driver: TestDriver) -> None:
    rewind(driver, 2)


def resize(driver: TestDriver) -> None:
    rescale(driver, 3)


def delete(driver: TestDriver) -> None:
    remove(driver)


def begin(driver: TestDriver) -> None:
    begin_from(driver, "s", "numbered")


Command = Callable[[TestDriver], None]
PLACED = ("set_back.published", "commit.written", "set_back.committed", "parts.set_back")
BEGUN = ("savepoint.verified", "savepoint.file_linked", "savepoint.files_brought", "commit.written")
DELETED = ("delete.published", "delete.renamed", "delete.gone")
COMMANDS: dict[str, tuple[str, Command, tuple[str, ...]]] = {
    "reset": ("exchange", set_back, PLACED),
    "reset in parts": ("bus", set_back, (*PLACED, "parts.stream_removed")),
    "rewind": ("exchange", go_back, PLACED[:3]),
    "rescale": (
        "exchange",
        resize,
        ("rescale.published", "commit.written", "rescale.committed"),
    ),
    "delete": ("exchange", delete, DELETED),
    "delete in parts": ("bus", delete, (*DELETED, "parts.stream_removed")),
    "savepoint": ("exchange", begin, BEGUN),
    "savepoint in parts": ("bus", begin, (*BEGUN, "savepoint.streams_made", "savepoint.begun")),
}
TWICE = {"parts.set_back", "set_back.published", "set_back.committed", "savepoint.file_linked"}
"""What is done to each part of a job, or each file."""

CASES = [
    (name, point, nth)
    for name, (way, _, points) in COMMANDS.items()
    for point in points
    for nth in ((1, 2) if way == "bus" and point in TWICE else (1,))
]
QUICK = [case for case in CASES if f"{case[0]} in parts" not in COMMANDS]
"""A command over parts goes through all steps of the same one over a job of one part."""


def prepared(chain: Chain, name: str) -> None:
    """A job of a few epochs, which has a savepoint, and has run on since."""
    driver = chain.driver
    for _ in range(3):
        chain.feed(driver)
        driver.run()
    save(driver, "s")
    if name.startswith("savepoint"):
        reset(driver)
    driver.crash()


@pytest.mark.parametrize(("name", "point", "nth"), more(QUICK, CASES))
def test_a_command_that_freezes_undoes_nothing_of_who_has_gone_on(
    tmp_path: Path, name: str, point: str, nth: int
) -> None:
    """The other one does the same, and runs the job, before the first one wakes."""
    way, command, _ = COMMANDS[name]
    chain = Chain(tmp_path, way)
    prepared(chain, name)
    frozen, other = chain.driver, chain.next()
    ends: list[Any] = []

    def meanwhile() -> None:
        seize(other)
        command(other)
        for _ in range(2):  # what was sent is not all of one epoch
            chain.feed(other)
            other.run()
        ends.append(shown(chain, other))

    with frozen_at(point, meanwhile, nth), suppress(HeadraceError):
        command(frozen)
    other.crash(lose_hosts=[0])
    other.start()
    assert shown(chain, other) == ends[0]
    chain.feed(other)
    other.run()
    before, after = ends[0], shown(chain, other)
    assert sum((after[0] - before[0]).values()) == 6
    assert sum((after[1] - before[1]).values()) == 6
    assert sum(after[2].values()) == sum(before[2].values()) + 6
    chain.close()
    other.close()


@contextmanager
def frozen_at(point: str, meanwhile: Callable[[], None], nth: int = 1) -> Iterator[None]:
    """Let a block freeze at a point, and wake when something was done that must not fail."""
    failed: list[BaseException] = []

    def act() -> None:
        try:
            meanwhile()
        except BaseException as error:
            failed.append(error)
            raise

    with call_at(point, act, nth) as passes:
        yield
    if failed:
        raise failed[0]
    assert len(passes) == nth


def shown(chain: Chain, driver: TestDriver) -> tuple[Counter[Any], Counter[Any], dict[str, int]]:
    """What readers of the stream and of the sink see, and the counts of the job."""
    return chain.streamed(driver), chain.kept(), dict(driver.store("n"))


def test_a_driver_frozen_while_it_prunes_takes_no_manifest_of_a_job_made_anew(
    tmp_path: Path,
) -> None:
    """The new one has the name and folder of the deleted one, and epochs of the same numbers."""
    chain = Chain(tmp_path, "exchange")
    old, new = chain.driver, chain.next()
    for _ in range(10):
        chain.feed(old)
        old.run()

    def meanwhile() -> None:
        delete(new)
        chain.begin_anew(new)
        for _ in range(6):
            chain.feed(new)
            new.run()

    pruned = limited(base_every=2, prune_margin=1)
    with pruned, suppress(HeadraceError), frozen_at("prune.due", meanwhile):
        for _ in range(8):
            chain.feed(old)
            old.run()
    new.crash(lose_hosts=[0])
    chain.feed(new)
    new.run()
    chain.check(new)
    chain.close()
    new.close()


def test_a_driver_frozen_while_it_sweeps_takes_no_file_of_a_savepoint_that_was_begun_from(
    tmp_path: Path,
) -> None:
    """Files keep their names in a savepoint, and epochs of before then have them again."""
    chain = Chain(tmp_path, "exchange")
    old, new = chain.driver, chain.next()
    with limited(**MERGE_OFTEN):
        for _ in range(3):
            chain.feed(old)
            old.run()
        save(old, "s")
        begun = dict(chain.fed)
        for _ in range(12):
            chain.feed(old)
            old.run()

        def meanwhile() -> None:
            reset(new)
            begin(new)

        swept = limited(sweep_every=1)
        with swept, suppress(HeadraceError), frozen_at("sweep.due", meanwhile):
            chain.feed(old)
            old.advance()
    new.crash(lose_hosts=[0])
    new.start()
    assert dict(new.store("n")) == begun
    new.run()
    assert dict(new.store("n")) == dict(chain.fed)
    chain.close()
    new.close()


@pytest.mark.parametrize("way", ["exchange", "bus"])
def test_a_driver_frozen_before_it_answers_leaves_that_to_the_next_one(
    tmp_path: Path, way: str
) -> None:
    """Who asked for a savepoint gets none of an epoch with the ends of streams of later ones."""
    chain = Chain(tmp_path, way)
    old, new = chain.driver, chain.next()
    for _ in range(3):
        chain.feed(old)
        old.run()
    woken: list[str] = []

    def meanwhile() -> None:
        woken.append("taken over")
        for _ in range(3):
            chain.feed(new)
            new.run()

    def step() -> None:
        for part in new.parts if woken else ():
            part.serve_requests()

    with frozen_at("request.answer_due", meanwhile):
        save_running(old, "s", step)
    begun = OnHost(make(tmp_path / "other sink", way), tmp_path, 9)
    begin_from(begun, "s", "begun")
    begun.run()
    assert dict(begun.store("n")) == dict(chain.fed)
    for one in (old, new, begun):
        one.close()


def test_a_start_that_freezes_says_who_has_the_job(tmp_path: Path) -> None:
    """Files that it was about to send are swept by then, which is no damage."""
    chain = Chain(tmp_path, "exchange")
    old, new = chain.driver, chain.next()
    chain.feed(old)
    assert old.advance_with_crash("commit.published")

    def meanwhile() -> None:
        for _ in range(3):
            chain.feed(new)
            new.run()

    swept = limited(sweep_every=1)
    with swept, frozen_at("epoch.output_published", meanwhile), pytest.raises(NotOwnerError):
        old.start()
    chain.check(new)
    chain.close()
    new.close()


def test_a_driver_that_ends_late_takes_no_passwords_of_the_next_one(tmp_path: Path) -> None:
    """Workers of the next one could not open what a plan names."""
    chain = Chain(tmp_path, "exchange")
    old, new = chain.driver, chain.next()
    old.start()
    new.start()
    path = leave_secrets(new)
    forget_secrets(old)
    assert path.exists()
    forget_secrets(new)
    assert not path.exists()
    chain.close()
    new.close()


def make_bounded(folder: Path) -> hr.Job:
    @hr.job("rows")
    def rows(g: hr.Graph) -> None:
        g.input("in").filter(hr.col("n") >= 0).send_to(g.output("out"))

    return rows


class Bounded:
    """Runs of a bounded job, whose outputs begin anew with each."""

    def __init__(self, home: Path, number: int) -> None:
        self.driver = OnHost(make_bounded(home), home, number)
        with_settings(self.driver, "job", bounded=True, replace_outputs=True)

    def run(self) -> int:
        """Run the job once, as one start with --bounded does; returns the number of the run."""
        begin_next_run(self.driver)
        self.driver.start()
        self.driver.run()
        conclude_run(self.driver)
        return self.driver.coordinator.state.run

    def rows(self) -> list[int]:
        return sorted(row["n"] for row in self.driver.output("out"))


@pytest.mark.parametrize("point", ["run.empty_due", "run.outputs_emptied", "set_back.published"])
def test_a_start_that_freezes_drops_no_rows_of_a_run_that_has_begun_since(
    tmp_path: Path, point: str
) -> None:
    frozen, other = Bounded(tmp_path, 1), Bounded(tmp_path, 2)
    frozen.driver.create("in", {"n": pa.int64()}, partitions=2)
    for number in range(4):
        frozen.driver.feed("in", [{"n": number}])
    assert frozen.run() == 1

    def meanwhile() -> None:
        assert other.run() == 2
        assert other.rows() == [0, 1, 2, 3]

    with frozen_at(point, meanwhile), pytest.raises(NotOwnerError):
        frozen.run()
    assert other.rows() == [0, 1, 2, 3]
    assert other.run() == 3
    for one in (frozen, other):
        one.driver.close()


def test_a_driver_frozen_at_the_end_of_its_run_hides_no_later_end(tmp_path: Path) -> None:
    """Else the next start would take the run for one that has not ended, and begin none."""
    frozen, other = Bounded(tmp_path, 1), Bounded(tmp_path, 2)
    frozen.driver.create("in", {"n": pa.int64()})
    frozen.driver.feed("in", [{"n": 1}])

    def meanwhile() -> None:
        other.run()
        assert other.run() == 2

    with frozen_at("run.conclude_due", meanwhile), suppress(NotOwnerError):
        frozen.run()
    assert other.run() == 3
    for one in (frozen, other):
        one.driver.close()
