"""``partition_by(..., via="bus")`` under the test driver: two sides, each at its own pace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.changes import make_streams, readers, remove, reset, rewind, save
from tests.support.soak import more
from tests.support.watching import described, job_list

import headrace as hr
from headrace.bus import Fence, FileBus
from headrace.errors import GraphError, InvalidInputError, NotOwnerError, PartsError
from headrace.testing import TestDriver, call_at

CLICKS = {"user": pa.string(), "n": pa.int64(), "at": pa.int64()}
SECOND = "clicks@clicks.by_user"
INNER = "clicks.clicks.by_user.exchange"


@hr.job("clicks")
def clicks(g: hr.Graph) -> None:
    rows = g.input("clicks", time="at")
    rows.send_to(g.output("seen"))
    by_user = rows.partition_by("user", via="bus")
    by_user.window(hr.tumbling("10s"), n=hr.agg.sum("n")).send_to(g.output("windows"))


@pytest.fixture
def driver() -> Iterator[TestDriver]:
    with TestDriver(clicks, tasks=2) as made:
        made.create("clicks", CLICKS, time="at", partitions=2)
        yield made


def feed(driver: TestDriver, at_s: Sequence[int], users: str = "abc") -> None:
    for partition in range(2):
        rows = [{"user": user, "n": 1, "at": at * 1000} for at in at_s for user in users]
        driver.feed("clicks", rows, partition=partition)


def sums(driver: TestDriver) -> Counter[str]:
    total: Counter[str] = Counter()
    for row in driver.output("windows"):
        total[row["user"]] += row["n"]
    return total


def test_a_side_that_stands_still_does_not_hold_up_the_other(driver: TestDriver) -> None:
    for second in range(0, 50, 10):
        feed(driver, [second])
        assert driver.advance(part=0) is not None
    assert len(driver.output("seen")) == 30
    assert driver.output("windows") == []
    summary = driver.advance(part=1)
    assert summary is not None
    assert (summary.rows, summary.job) == (0, "clicks@clicks.by_user")
    assert sums(driver) == {"a": 8, "b": 8, "c": 8}  # the last window is open


def test_a_quiet_input_still_closes_the_windows_that_its_watermark_has_passed(
    driver: TestDriver,
) -> None:
    feed(driver, [0], "a")
    driver.run()
    assert driver.output("windows") == []
    feed(driver, [30], "b")  # nothing of user a: only marks reach its partition
    driver.run()
    assert sums(driver) == {"a": 2}


def test_a_bounded_run_ends_when_all_parts_are_through(driver: TestDriver) -> None:
    feed(driver, [1, 12])
    for part in driver.parts:
        part.end_at_present()
    assert driver.advance(part=1) is None  # its end is not known yet
    while driver.advance(part=0) is not None:
        assert not driver.parts[1].has_ended
    driver.run()
    assert [part.has_ended for part in driver.parts] == [True, True]
    assert sums(driver) == {"a": 4, "b": 4, "c": 4}


def test_an_empty_input_ends_too(driver: TestDriver) -> None:
    driver.finish()
    assert all(part.has_ended for part in driver.parts)


def test_without_event_time_only_the_end_is_marked() -> None:
    @hr.job("totals")
    def totals(g: hr.Graph) -> None:
        by_user = g.input("clicks").partition_by("user", via="bus", name="by")
        by_user.aggregate(name="totals", n=hr.agg.sum("n"))

    with TestDriver(totals) as driver:
        driver.create("clicks", {"user": pa.string(), "n": pa.int64()})
        driver.feed("clicks", [{"user": user, "n": 1} for user in "aabb"])
        driver.run()
        assert sum(driver.bus.stream("totals.by.exchange").ends()) == 4
        driver.finish()
        assert sum(driver.bus.stream("totals.by.exchange").ends()) == 8
        assert {row["user"]: row["n.sum"] for row in driver.table("totals")} == {"a": 2, "b": 2}


@pytest.mark.parametrize("way", ["bus", "exchange"])
def test_windows_wait_for_those_before_as_long_as_these_take_records(way: str) -> None:
    """Their results come that much after the watermark, and are late for nothing."""

    @hr.job("graces")
    def graces(g: hr.Graph) -> None:
        window = (
            g.input("clicks", time="at")
            .partition_by("user")
            .window(hr.tumbling("5s", "5s"), n=hr.agg.sum("n"))
        )
        again = window.partition_by("user", via=way).window(hr.tumbling("10s"), m=hr.agg.sum("n"))
        again.send_to(g.output("windows"))

    with TestDriver(graces) as driver:
        driver.create("clicks", CLICKS, time="at")
        for second in (1, 6, 10, 15):
            driver.feed("clicks", [{"user": "a", "n": 1, "at": second * 1000}])
            driver.run()
        driver.finish()
        assert [row["m"] for row in driver.output("windows")] == [2, 2]


def mixed(way: str) -> hr.Job:
    @hr.job("mixed")
    def job(g: hr.Graph) -> None:
        left = g.input("left", time="at").partition_by("user", via=way, name="by-left")
        right = g.input("right", time="at").partition_by("user", name="by-right")
        counts = left.merge(right).window(hr.tumbling("10s"), name="both", n=hr.agg.sum("n"))
        counts.send_to(g.output("windows"))
        best = counts.partition_by("window_start").window(hr.tumbling("10s"), m=hr.agg.max("n"))
        best.send_to(g.output("best"))

    return job


ORDERS = [[0, 1], [1, 0], [0, 0, 1], [1, 1, 0]]


@pytest.mark.parametrize("order", more(ORDERS[::3], ORDERS), ids=str)
def test_a_stage_may_receive_files_and_the_bus(order: list[int]) -> None:
    """Windows over both close at the lesser watermark, once, whichever side is ahead."""
    found = []
    for way in ("exchange", "bus"):
        with TestDriver(mixed(way), tasks=2, max_rows=7) as driver:
            driver.create("left", CLICKS, time="at")
            driver.create("right", CLICKS, time="at", partitions=2)
            for second in range(0, 80, 4):
                for number in range(3):
                    row = {"user": "abcd"[second // 4 % 4], "n": second, "at": second * 1000}
                    driver.feed("left" if number == 2 else "right", [row], partition=number % 2)
                for part in order:
                    driver.advance(part=part % len(driver.parts))
            early = [len(driver.output(name)) for name in ("windows", "best")]
            driver.finish()
            assert min(early) > 0
            found.append([sorted(map(str, driver.output(name))) for name in ("windows", "best")])
    assert found[0] == found[1]


def test_dead_letters_know_the_record_they_came_from() -> None:
    def fussy(message: Any) -> bool:
        if message.n == 3:
            raise ValueError("three")
        return True

    @hr.job("fussy")
    def job(g: hr.Graph) -> None:
        rows = g.input("clicks", time="at").partition_by("user", via="bus", name="by")
        rows.filter(fussy, on_error="dead_letter").send_to(g.output("good"))

    with TestDriver(job) as driver:
        driver.create("clicks", CLICKS, time="at", partitions=2)
        rows = [{"user": "a", "n": n, "at": n} for n in range(5)]
        driver.feed("clicks", rows, partition=1)
        driver.run()
        (letter,) = driver.output("fussy.dead")
        assert (letter["job"], letter["stream"]) == ("fussy", "clicks")
        assert (letter["partition"], letter["offset"]) == (1, 3)
        assert len(driver.output("good")) == 4


def test_event_time_from_the_clock_goes_on_while_nothing_comes() -> None:
    @hr.job("clock")
    def job(g: hr.Graph) -> None:
        rows = g.input("clicks", time=hr.processing_time()).partition_by(
            "user", via="bus", name="by"
        )
        rows.window(hr.tumbling("10s"), n=hr.agg.sum("n")).send_to(g.output("windows"))

    with TestDriver(job) as driver:
        driver.create("clicks", CLICKS)
        driver.feed("clicks", [{"user": "a", "n": 1, "at": 0}])
        driver.run()
        assert driver.output("windows") == []
        driver.clock.advance(20_000)
        driver.run()
        assert sums(driver) == {"a": 1}


def test_patterns_do_not_match_internal_streams() -> None:
    @hr.job("all")
    def job(g: hr.Graph) -> None:
        g.input("*s*", time="at").partition_by("user", via="bus").aggregate(n=hr.agg.count())

    with TestDriver(job) as driver:
        driver.create("clicks", CLICKS, time="at")
        driver.run()
        driver.crash()
        driver.feed("clicks", [{"user": "a", "n": 1, "at": 1}])
        driver.run()
        assert set(driver.coordinator.input_streams().values()) == {"clicks"}


def test_what_was_taken_in_is_trimmed(driver: TestDriver) -> None:
    for second in range(24):
        feed(driver, [second])
        driver.run()
    stream = driver.bus.stream(INNER)
    assert all(begin > 0 for begin in stream.begins())
    driver.crash(lose_hosts=[0])
    driver.finish()
    assert sums(driver) == {"a": 48, "b": 48, "c": 48}


def test_tasks_may_become_fewer_where_each_partition_stays_with_one(driver: TestDriver) -> None:
    feed(driver, [1])
    driver.run()
    with pytest.raises(InvalidInputError, match="found 3 tasks, expected a number that divides 2"):
        driver.parts[1].rescale(3)
    driver.parts[1].rescale(1)
    feed(driver, [2])
    driver.run()
    driver.crash(lose_hosts=[0])
    feed(driver, [13])
    driver.finish()
    assert driver.parts[1].state.task_counts == {"clicks.by_user": 1}
    assert sums(driver) == {"a": 6, "b": 6, "c": 6}


def hops(way: str) -> hr.Job:
    @hr.job("hops")
    def job(g: hr.Graph) -> None:
        by_user = g.input("clicks", time="at").partition_by("user", via=way, name="by")
        sums = by_user.window(hr.hopping("10s", every="2s"), name="w", n=hr.agg.sum("n"))
        sums.send_to(g.output("windows"))
        early = by_user.window(hr.tumbling("10s", early="2s"), name="e", n=hr.agg.sum("n"))
        early.map("user", "n", "window_start").send_to(g.output("early"))
        quiet = hr.session("7s", early_idle="3s", updates="retract")
        by_user.window(quiet, name="q", n=hr.agg.sum("n")).send_to(g.output("quiet"))

    return job


def updated() -> hr.Job:
    @hr.job("hops")
    def job(g: hr.Graph) -> None:
        by_user = g.input("clicks", time="at").partition_by("user", via="bus", name="by")
        minutes = hr.tumbling("10s", allowed_lateness="1m", late="update")
        sums = by_user.window(minutes, name="w", n=hr.agg.sum("n"))
        sums.send_to(g.output("windows"))

    return job


def hopping_rows(way: str, max_rows: int) -> list[Counter[str]]:
    with TestDriver(hops(way), tasks=4, max_rows=max_rows) as driver:
        driver.create("clicks", CLICKS, time="at", partitions=1)
        for second in range(0, 28, 2):
            users = "abcdefgh"[: 1 + second % 8]
            rows = [{"user": user, "n": 1, "at": second * 1000} for user in users]
            driver.feed("clicks", rows)
            driver.advance(part=0)
        driver.finish()
        return [Counter(map(str, driver.output(name))) for name in ("windows", "early", "quiet")]


@pytest.mark.parametrize("max_rows", more([7], [5, 7]))
def test_windows_that_share_rows_come_out_once_where_tasks_are_apart(max_rows: int) -> None:
    """A task whose marks are ahead of the other tasks' has sent more than the stage's watermark."""
    assert hopping_rows("bus", max_rows) == hopping_rows("exchange", 1000)


@pytest.mark.parametrize("job", [hops("bus"), updated()], ids=["shared", "updated"])
def test_tasks_that_have_sent_other_windows_do_not_become_one(job: hr.Job) -> None:
    with TestDriver(job, tasks=4, max_rows=5) as driver:
        driver.create("clicks", CLICKS, time="at", partitions=1)
        for second in range(0, 28, 2):
            driver.feed("clicks", [{"user": "a", "n": 1, "at": second * 1000}] * 3)
            driver.advance(part=0)
        for _ in range(3):
            driver.advance(part=1)
        with pytest.raises(PartsError, match="different watermarks; ask again when it has read"):
            driver.parts[1].rescale(2)
        driver.run()
        driver.parts[1].rescale(2)
        driver.finish()
        found = Counter(row["window_end"] for row in driver.output("windows"))
        assert set(found.values()) == {1}


def graph(body: Callable[[hr.Stream], hr.Stream], way: str = "bus") -> hr.Job:
    @hr.job("clicks")
    def job(g: hr.Graph) -> None:
        rows = g.input("clicks", time="at")
        by_user = body(rows).partition_by("user", via=way, name="by")
        by_user.window(hr.tumbling("10s"), name="w", n=hr.agg.count()).send_to(g.output("windows"))

    return job


def test_a_graph_that_no_longer_fits_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with TestDriver(graph(lambda rows: rows), home=tmp_path, memory_bus=False) as driver:
        driver.create("clicks", CLICKS, time="at", partitions=2)
        feed(driver, [1])
        driver.run()
    moved = "operator 'w' .* has its state in part 'clicks@by', and would be in 'clicks' now: via="
    fewer = "partition_by 'by' sends has changed.*expected user string, n int64.*jobs reset clicks"
    for job, told in (
        (graph(lambda rows: rows, "exchange"), moved),
        (graph(lambda rows: rows.map("user", "at")), fewer),
    ):
        with (
            TestDriver(job, home=tmp_path, memory_bus=False) as driver,
            pytest.raises(PartsError, match=told),
        ):
            driver.start()
    same = graph(lambda rows: rows.filter(hr.col("n") > 0))
    with TestDriver(same, home=tmp_path, memory_bus=False) as driver:
        feed(driver, [2])
        assert driver.finish() > 0


def sides(*names: str) -> hr.Job:
    @hr.job("clicks")
    def job(g: hr.Graph) -> None:
        rows = g.input("clicks", time="at")
        rows.send_to(g.output("seen"))
        for name in names:
            by_user = rows.partition_by("user", via="bus", name=name)
            by_user.window(hr.tumbling("10s"), name=f"w-{name}", n=hr.agg.sum("n"))

    return job


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ("a", "what is sent by 'b' is gone"),
        ("b", "what is sent by 'a' is gone"),
        ("", "what is sent by 'a' is gone"),
        ("abc", "what is sent by 'c' is new: it would begin in the middle of the inputs"),
    ],
)
def test_a_part_that_comes_or_goes_is_refused(names: str, told: str, tmp_path: Path) -> None:
    """Its readers would lack what was read without them."""
    with TestDriver(sides("a", "b"), home=tmp_path, memory_bus=False) as driver:
        driver.create("clicks", CLICKS, time="at", partitions=2)
        feed(driver, [1])
        driver.run()
    with (
        TestDriver(sides(*names), home=tmp_path, memory_bus=False) as driver,
        pytest.raises(InvalidInputError, match=told),
    ):
        driver.start()


def test_a_part_that_never_began_is_in_nobodys_way(tmp_path: Path) -> None:
    """As when its sink is refused: the first part has state by then."""
    with TestDriver(clicks, tasks=2, home=tmp_path, memory_bus=False) as driver:
        driver.create("clicks", CLICKS, time="at", partitions=2)
        feed(driver, [1])
        assert driver.advance_with_crash("commit.written", 2, driver.start)
        assert described(driver).status == "stopped"
        reset(driver)
        assert INNER not in driver.bus.names()
        driver.finish()
        assert sums(driver) == {"a": 2, "b": 2, "c": 2}
        driver.crash()
        remove(driver)
        assert list(driver.settings.jobs_dir.iterdir()) == []


def test_a_job_that_never_began_may_send_other_columns(tmp_path: Path) -> None:
    with TestDriver(graph(lambda rows: rows), home=tmp_path, memory_bus=False) as driver:
        driver.create("clicks", CLICKS, time="at", partitions=2)
        assert driver.advance_with_crash("commit.written", 1, driver.start)
    fewer = graph(lambda rows: rows.map("user", "at"))
    with TestDriver(fewer, home=tmp_path, memory_bus=False) as driver:
        feed(driver, [1])
        driver.finish()
        assert sum(row["n"] for row in driver.output("windows")) == 6


def test_copies_of_parts_are_refused() -> None:
    with TestDriver(clicks, durability="backup(30s)") as driver:
        driver.create("clicks", CLICKS, time="at")
        with pytest.raises(InvalidInputError, match=r"has 2 parts.*use state.durability=epoch"):
            driver.start()


def test_a_wrong_graph_is_told_before_anything_is_made(driver: TestDriver) -> None:
    wrong = hr.job("clicks")(lambda g: g.input("clicks").partition_by("user", via="here"))
    with TestDriver(wrong) as other, pytest.raises(GraphError, match="via is 'here'"):
        other.start()


POINTS = ["set_back.published", "set_back.committed", "parts.set_back", "parts.stream_removed"]


@pytest.mark.parametrize(
    ("point", "nth"), more([*zip(POINTS, [1, 2, 2, 1], strict=True)], [*product(POINTS, [1, 2])])
)
def test_a_reset_that_was_cut_is_completed_by_another(point: str, nth: int, tmp_path: Path) -> None:
    with TestDriver(clicks, tasks=2, home=tmp_path, memory_bus=False) as driver:
        driver.create("clicks", CLICKS, time="at", partitions=2)
        feed(driver, [1, 12])
        driver.run()
        before = Counter(str(row) for row in driver.output("windows"))
        driver.crash()
        if driver.advance_with_crash(point, nth, lambda: reset(driver)):
            with pytest.raises(InvalidInputError, match="run it again: headrace jobs reset clicks"):
                driver.start()
            reset(driver)
        assert INNER not in driver.bus.names()
        seen = described(driver)
        assert (seen.status, [part.part for part in seen.parts]) == (
            "reset",
            ["clicks", "clicks@clicks.by_user"],
        )
        driver.finish()
        again = Counter(str(row) for row in driver.output("windows")) - before
        assert len(again) == 6


def test_an_old_driver_does_not_reach_the_streams_of_after_a_reset(tmp_path: Path) -> None:
    """It woke up before it had published: the new streams do not know its marks, nor the end."""
    with TestDriver(clicks, tasks=2, home=tmp_path, memory_bus=False) as driver:
        driver.create("clicks", CLICKS, time="at", partitions=2)
        driver.parts[0].end_at_present()

        old = driver.parts[0]

        def take_over() -> None:
            reset(driver)
            make_streams(old)  # as a new driver does

        with call_at("commit.published", take_over), pytest.raises(NotOwnerError):
            old.advance()
        assert driver.bus.stream(INNER).ends() == [0, 0]
        feed(driver, [1])
        driver.crash()
        driver.finish()
        assert sums(driver) == {"a": 2, "b": 2, "c": 2}


@pytest.mark.parametrize("point", ["catalog.due", "generation.taken"])
def test_a_driver_that_freezes_between_its_parts_takes_none_from_a_newer_one(
    point: str, tmp_path: Path
) -> None:
    """Its generation is one number for both parts, so the second one refuses it, too."""
    home: dict[str, Any] = {"tasks": 2, "home": tmp_path, "memory_bus": False}
    with TestDriver(clicks, **home) as old, TestDriver(clicks, **home) as new:
        old.create("clicks", CLICKS, time="at", partitions=2)

        def take_over() -> None:
            feed(new, [1])
            new.run()

        with call_at(point, take_over) as passes, pytest.raises(NotOwnerError):
            old.start()
        assert passes
        feed(new, [12])
        for part in (0, 1):
            assert new.advance(part=part) is not None
        assert len({part.generation for part in new.parts}) == 1
        assert sums(new) == {"a": 2, "b": 2, "c": 2}


@pytest.mark.parametrize("command", [reset, remove, lambda driver: save(driver, "s")])
def test_a_command_that_freezes_between_two_parts_takes_none_from_a_driver(
    command: Callable[[TestDriver], object], tmp_path: Path
) -> None:
    home: dict[str, Any] = {"tasks": 2, "home": tmp_path, "memory_bus": False}
    with TestDriver(clicks, **home) as old, TestDriver(clicks, **home) as new:
        old.create("clicks", CLICKS, time="at", partitions=2)
        feed(old, [1])
        old.run()
        old.crash()

        def take_over() -> None:
            feed(new, [2])
            new.run()

        with call_at("generation.taken", take_over) as passes, pytest.raises(NotOwnerError):
            command(old)
        assert passes
        feed(new, [12])
        for part in (0, 1):
            assert new.advance(part=part) is not None
        assert sums(new) == {"a": 4, "b": 4, "c": 4}


def test_a_part_of_a_higher_generation_than_the_others_is_gone_on_with(tmp_path: Path) -> None:
    """Former versions counted the generations of each part by itself."""
    with TestDriver(clicks, tasks=2, home=tmp_path, memory_bus=False) as driver:
        driver.create("clicks", CLICKS, time="at", partitions=2)
        feed(driver, [1])
        driver.run()
        driver.crash()
        taken = driver.settings.jobs_dir / SECOND / "generations"
        for number in range(20, 24):
            (taken / f"{number:08d}.json").write_text("{}")
        driver.bus.fence(Fence(SECOND, 25))
        feed(driver, [12])
        driver.finish()
        assert [part.generation for part in driver.parts] == [26, 26]
        assert sums(driver) == {"a": 4, "b": 4, "c": 4}


@pytest.mark.parametrize(
    ("point", "nth", "part"),
    [
        ("epoch.output_published", 1, 0),
        ("epoch.output_published", 2, 0),
        ("feed.mark_published", 1, 0),
        ("feed.trimmed", 1, 1),
    ],
)
def test_a_driver_that_wakes_after_a_reset_changes_no_stream_of_the_new_run(
    point: str, nth: int, part: int, tmp_path: Path
) -> None:
    """It froze between two of its acts, after it had found that it is the newest."""
    with TestDriver(clicks, tasks=2, home=tmp_path, memory_bus=False) as driver:
        driver.create("clicks", CLICKS, time="at", partitions=2)
        for _ in range(16):  # by now internal streams are trimmed
            feed(driver, [1], "ab")
            driver.advance(part=0)
            if part:
                driver.advance(part=1)
        feed(driver, [12], "abcdefgh")
        if part:
            driver.advance(part=0)
        old, found = driver.parts[part], list[Any]()

        def places() -> list[tuple[list[int], list[int]]]:
            streams = [driver.bus.stream(name) for name in driver.bus.names()]
            return [(one.begins(), one.ends()) for one in streams]

        def freeze() -> None:
            with FileBus(tmp_path / "bus") as bus:  # of another process
                reset(driver, bus=bus)
                make_streams(driver.parts[0], bus)
                stream, taken = bus.stream(INNER), old.state.inputs.get("clicks.by_user", {})
                for partition in range(2):  # as many as were taken in of the old one
                    rows = taken[partition].next_offset if taken else 3
                    nulls = [pa.nulls(rows, field.type) for field in stream.spec.schema]
                    schema = stream.spec.schema
                    stream.append(partition, pa.RecordBatch.from_arrays(nulls, schema=schema))
            found.append(places())

        with call_at(point, freeze, nth), suppress(NotOwnerError):
            for _ in range(20):
                old.advance(force=True)
        assert [places()] == found
        reset(driver)
        before = sums(driver)
        driver.crash()
        driver.finish()
        assert sums(driver) - before == {"a": 34, "b": 34} | dict.fromkeys("cdefgh", 2)


def test_a_deleted_job_takes_its_internal_streams_along(tmp_path: Path) -> None:
    with TestDriver(clicks, tasks=2, home=tmp_path, memory_bus=False) as driver:
        driver.create("clicks", CLICKS, time="at", partitions=2)
        feed(driver, [1])
        driver.run()
        driver.crash()
        assert driver.advance_with_crash("delete.renamed", 1, lambda: remove(driver))
        with pytest.raises(InvalidInputError, match="a delete of job 'clicks' was not completed"):
            driver.start()
        remove(driver)
        assert driver.bus.names() == ["clicks", "seen", "windows"]
        assert job_list(driver) == []
        assert list(driver.settings.jobs_dir.iterdir()) == []
        driver.finish()
        assert sums(driver) == {"a": 2, "b": 2, "c": 2}


def test_commands_see_all_parts(driver: TestDriver) -> None:
    feed(driver, [1, 12])
    driver.run()
    assert job_list(driver) == ["clicks"]
    seen = described(driver)
    assert seen.rows == 12
    assert [(found.operator, found.lag) for found in seen.inputs] == [
        ("clicks", 0),
        ("clicks.by_user", 0),
    ]
    assert [stage.stage for stage in seen.stages] == ["clicks.by_user"]
    assert seen.outputs == ("seen", "windows")
    assert [reader.job for reader in readers(driver)] == ["clicks", "clicks@clicks.by_user"]
    with pytest.raises(InvalidInputError, match=r"has no store 'none'; it has clicks.by_user.win"):
        driver.rows("none")
    with pytest.raises(InvalidInputError, match=r"has 2 parts.*headrace jobs reset clicks"):
        rewind(driver, 1)
    sender, receiver = driver.why()
    assert "clicks.by_user" in {end.operator for end in sender.ends}
    assert receiver.stages[0].watermark_ms == 12_000
    assert receiver.stages[0].behind.startswith("input clicks.by_user, partition 0")
