"""``headrace backfill``: the settings that make a run over old data of a job."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.changes import check_unused, is_half_merged, merge_run, with_inputs
from tests.support.cli import done, headrace, range_sets, rate_sets, refused
from tests.support.homes import load_settings

import headrace as hr
from headrace.errors import InvalidInputError
from headrace.testing import TestDriver, crash_at


@hr.job("shop")
def shop(g: hr.Graph) -> None:
    g.input("rates").send_to(g.output("copied"))
    g.input("shop.orders", time="at").send_to(g.output("out"))


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    with TestDriver(shop, home=tmp_path) as made:
        made.create("shop.orders", {"code": pa.string(), "at": pa.int64()}, time="at")
        made.create("rates", {"code": pa.string(), "rate": pa.int64()}, key=["code"])
        yield made


def sets(
    driver: TestDriver,
    end: str | None = "2013-02-01",
    inputs: Mapping[str, Mapping[str, str]] | None = None,
) -> list[str]:
    with_inputs(driver, **(inputs or {}))
    return range_sets(driver.settings, shop, driver.bus, "2013-01-01", end)


def test_inputs_with_event_times_get_the_range_and_others_are_read_whole(
    driver: TestDriver,
) -> None:
    found = sets(driver)
    assert found == [
        "inputs.shop.orders.from=2013-01-01",
        "inputs.shop.orders.to=2013-02-01",
    ]
    given = load_settings(None, [*found, f"home={driver.home}"]).inputs["shop.orders"]
    assert (given.begin, given.end) == ("2013-01-01", "2013-02-01")
    assert sets(driver, None) == ["inputs.shop.orders.from=2013-01-01"]


def test_what_the_settings_say_of_an_input_stays(driver: TestDriver) -> None:
    """A table gets the range; one whose days are chosen is read as they say."""
    table = {"table": "orders"}
    assert len(sets(driver, inputs={"shop.orders": table})) == 2
    assert sets(driver, inputs={"shop.orders": {**table, "days": "2013-01-01"}}) == []


def test_a_rate_is_a_bound_of_an_epoch_a_second() -> None:
    assert rate_sets(5000) == ["epoch.max_rows=5000", "epoch.interval_ms=1000"]
    assert rate_sets(None) == []


MODULE = """
import headrace as hr


def add(live, old):
    return {**old, "n": old["n"] + live["n"]}


@hr.job("sums", merge=add)
def sums(g):
    rows = g.input("in", time="at").partition_by("user")
    rows.aggregate(n=hr.agg.sum("n")).send_to(g.output("out"), name="out")
"""


def sums_job(by: Any) -> hr.Job:
    @hr.job("sums", merge=by)
    def sums(g: hr.Graph) -> None:
        rows = g.input("in", time="at").partition_by("user")
        rows.aggregate(n=hr.agg.sum("n")).send_to(g.output("out"), name="out")

    return sums


@contextmanager
def merged_in_part(sums: hr.Job, home: Path) -> Iterator[TestDriver]:
    """Give the driver of a live job into which old results were merged in part, by who died."""
    with TestDriver(sums, tasks=2, home=home, memory_bus=False) as live:
        live.create("in", {"user": pa.string(), "n": pa.int64(), "at": pa.int64()}, time="at")
        live.feed("in", [{"user": user, "n": 1, "at": 0} for user in "abcdefg"])
        live.run()
        live.crash()
        beside = dataclasses.replace(sums, name="sums-backfill", apart="backfill")
        with TestDriver(beside, tasks=2, home=home, memory_bus=False) as run:
            run.finish()

        with crash_at("merge.appended"):
            merge_run(sums, home)
        yield live


def test_a_merge_that_was_killed_is_completed_and_no_other_run_begins(tmp_path: Path) -> None:
    """Another run would be merged as well, and a function that adds up would count it twice."""
    sums = sums_job(lambda live, old: {**old, "n": old["n"] + live["n"]})
    with merged_in_part(sums, tmp_path) as live:
        module = tmp_path / "sums_module.py"
        module.write_text(MODULE)
        asked = ("backfill", f"{module}:sums", "--from", "1970-01-01", "--home", tmp_path)
        said = refused(*asked, "--standalone")
        assert "a merge of the last run of 'sums-backfill' was begun, and some of its" in said
        ran = headrace(*asked, "--merge")
        assert ran.code == 0
        assert "its merge was begun: only that is completed" in ran.err
        assert "out: 0 rows appended" in ran.out
        last = {row["user"]: row["n"] for row in live.output("out")}
        assert last == dict.fromkeys("abcdefg", 2)
        assert not (tmp_path / "jobs" / "sums-backfill" / "merging").exists()


def test_a_run_that_is_merged_in_part_is_neither_run_anew_nor_set_back(tmp_path: Path) -> None:
    """However that is asked for: the note of the merge would be of a run that is gone."""

    with TestDriver(sums_job(None), home=tmp_path, memory_bus=False) as live:
        live.create("in", {"user": pa.string(), "n": pa.int64(), "at": pa.int64()}, time="at")
        live.feed("in", [{"user": "ann", "n": 1, "at": 0}])
        live.run()
        live.crash()
    module, name, home = tmp_path / "sums_again.py", "sums-backfill", ("--home", tmp_path)
    module.write_text(MODULE)
    target, alone = f"{module}:sums", "--standalone"
    again = (
        "run",
        target,
        "--name",
        name,
        "--output-suffix",
        "backfill",
        "--bounded",
        alone,
        *home,
    )
    assert headrace("backfill", target, "--from", "1970-01-01", alone, *home).code == 0
    assert headrace(*again).code == 0
    with crash_at("merge.appended"):
        merge_run(sums_job(larger), tmp_path)
    for command in (
        again,
        ("jobs", "reset", name, *home),
        ("jobs", "rewind", name, "--to=-1", *home),
    ):
        assert "a merge of the last run of 'sums-backfill' was begun" in refused(*command)
    assert merge_run(sums_job(larger), tmp_path).merged[0].there == 1
    done("jobs", "reset", name, *home)


def larger(live: dict[str, Any] | None, old: dict[str, Any]) -> dict[str, Any]:
    return {**old, "n": max(old["n"], 10 * (live["n"] if live else 0))}


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_merge_that_was_begun_is_completed_by_its_rule(tmp_path: Path, is_killed: bool) -> None:
    """Else the parts that are left would be decided by another one, for good."""
    sums = sums_job(larger)
    with TestDriver(sums, tasks=2, home=tmp_path, memory_bus=False) as live:
        live.create("in", {"user": pa.string(), "n": pa.int64(), "at": pa.int64()}, time="at")
        live.feed("in", [{"user": user, "n": 1, "at": 0} for user in "abcdefg"])
        live.run()
        live.crash()
        beside = dataclasses.replace(sums, name="sums-backfill", apart="backfill")
        with TestDriver(beside, tasks=2, home=tmp_path, memory_bus=False) as run:
            run.finish()

        def bring(code: hr.Job | None, *key: str) -> None:
            merge_run(code, tmp_path, "sums", key)

        note = tmp_path / "jobs" / "sums-backfill" / "merging"
        if is_killed:
            with crash_at("merge.appended"):
                bring(sums)
            begun = note.read_bytes()
            with pytest.raises(
                InvalidInputError, match=r"begun with a merge function \(--merge-job\)"
            ):
                bring(None)
            with pytest.raises(InvalidInputError, match=r"now asked for with .* and --key user"):
                bring(sums, "user")
            assert note.read_bytes() == begun
        bring(sums)
        assert {row["user"]: row["n"] for row in live.output("out")} == dict.fromkeys("abcdefg", 10)
        assert len(live.output("out")) == 14
        assert not note.exists()


def test_a_merge_that_is_refused_is_as_if_it_was_never_asked_for(tmp_path: Path) -> None:
    """Also where the function fails for the second output: the first one has nothing yet."""

    def fails(live: dict[str, Any] | None, old: dict[str, Any]) -> dict[str, Any]:
        if "largest" in old:
            raise ValueError(old)
        return old

    @hr.job("sums", merge=fails)
    def sums(g: hr.Graph) -> None:
        rows = g.input("in", time="at").partition_by("user")
        rows.aggregate(n=hr.agg.sum("n")).send_to(g.output("out"), name="out")
        rows.aggregate(largest=hr.agg.max("n")).send_to(g.output("tops"), name="tops")

    with TestDriver(sums, tasks=2, home=tmp_path, memory_bus=False) as live:
        live.create("in", {"user": pa.string(), "n": pa.int64(), "at": pa.int64()}, time="at")
        live.feed("in", [{"user": "ann", "n": 1, "at": 0}])
        live.run()
        live.crash()
        beside = dataclasses.replace(sums, name="sums-backfill", apart="backfill")
        with TestDriver(beside, tasks=2, home=tmp_path, memory_bus=False) as run:
            run.finish()
        note = tmp_path / "jobs" / "sums-backfill" / "merging"
        for by, key in ((sums, ()), (None, ("users",))):
            with pytest.raises(InvalidInputError, match=r"merge raised Val|is not in both"):
                merge_run(by, tmp_path, "sums", key)
            assert [len(live.output(stream)) for stream in ("out", "tops")] == [1, 1]
            assert not note.exists()
        assert merge_run(None, tmp_path, "sums").merged[0].kept == 1


def test_a_backfill_whose_merge_is_refused_says_how_its_results_are_merged_later(
    tmp_path: Path,
) -> None:
    with TestDriver(sums_job(None), home=tmp_path, memory_bus=False) as live:
        live.create("in", {"user": pa.string(), "n": pa.int64(), "at": pa.int64()}, time="at")
        live.feed("in", [{"user": "ann", "n": 1, "at": 0}])
        live.run()
        live.crash()
    module = tmp_path / "sums_wrong.py"
    module.write_text(MODULE.replace('live["n"]', 'live["m"]'))
    asked = ("backfill", f"{module}:sums", "--from", "1970-01-01", "--standalone", "--merge")
    config = tmp_path / "own.toml"
    config.write_text("[job]\ntasks = 2\n")
    more = ("--key", "user", "--config", config, "--home", tmp_path, "--set", "warehouse.keep_s=7")
    ran = headrace(*asked, *more)
    assert ran.code == 1
    assert "merge raised KeyError: 'm', for output 'out'" in ran.err
    again = ("jobs", "merge", "sums", "sums-backfill", "--merge-job", f"{module}:sums", *more)
    told = f"to merge them when that is fixed: headrace {' '.join(map(str, again))}\n"
    assert f"the results of sums-backfill stay; {told}" in ran.err
    module.write_text(MODULE)
    merged = (
        "jobs",
        "merge",
        "sums",
        "sums-backfill",
        "--merge-job",
        f"{tmp_path}/sums_mended.py:sums",
    )
    (tmp_path / "sums_mended.py").write_text(MODULE)
    assert "out: 1 rows of sums-backfill appended" in done(*merged, "--home", tmp_path)


def test_no_run_over_old_data_begins_while_its_results_are_merged(tmp_path: Path) -> None:
    def asks(live: dict[str, Any] | None, old: dict[str, Any]) -> None:
        told.append(headrace(*run).err)

    told: list[str] = []
    with TestDriver(sums_job(None), home=tmp_path, memory_bus=False) as live:
        live.create("in", {"user": pa.string(), "n": pa.int64(), "at": pa.int64()}, time="at")
        live.feed("in", [{"user": "ann", "n": 1, "at": 0}])
        live.run()
        live.crash()
    module = tmp_path / "sums_meanwhile.py"
    module.write_text(MODULE)
    words = ("--from", "1970-01-01", "--standalone", "--home", tmp_path)
    run = ("backfill", f"{module}:sums", *words)
    assert headrace(*run).code == 0
    merge_run(sums_job(asks), tmp_path)
    assert "job 'sums-backfill' is already driven by process" in told[0]


def test_a_merge_that_was_applied_in_part_stays_noted_when_it_is_refused_later(
    tmp_path: Path,
) -> None:
    def picky(live: dict[str, Any] | None, old: dict[str, Any]) -> dict[str, Any]:
        if wrong:
            raise ValueError(old)
        return {**old, "n": old["n"] + live["n"] if live else 0}

    wrong: list[int] = []
    sums = sums_job(picky)
    with merged_in_part(sums, tmp_path) as live:
        wrong.append(1)
        with pytest.raises(InvalidInputError, match="merge raised ValueError"):
            merge_run(sums, tmp_path)
        assert is_half_merged(live, "sums-backfill")
        wrong.clear()
        merge_run(sums, tmp_path)
        assert {row["user"]: row["n"] for row in live.output("out")} == dict.fromkeys("abcdefg", 2)


def test_a_new_backfill_takes_no_rows_of_others_for_its_own(tmp_path: Path) -> None:
    """They would be merged into the live results: of a deleted run, or of a version that runs."""
    sums = sums_job(None)
    with TestDriver(sums, tasks=2, home=tmp_path, memory_bus=False) as live:
        live.create("in", {"user": pa.string(), "n": pa.int64(), "at": pa.int64()}, time="at")
        live.feed("in", [{"user": "ann", "n": 1, "at": 0}])
        live.run()
        version = dataclasses.replace(sums, name="sums-2", apart="v2")
        with TestDriver(version, tasks=2, home=tmp_path, memory_bus=False) as other:
            other.run()
        module = tmp_path / "sums_beside.py"
        module.write_text(MODULE)
        asked = ("backfill", f"{module}:sums", "--from", "1970-01-01", "--name", "v2")
        said = refused(*asked, "--home", tmp_path)
        assert "job 'v2' is new, and its output 'out.v2' holds rows of another one" in said
        assert live.output("out.v2")
        done("bus", "trim", "out.v2", "--before", "latest", "--home", tmp_path)
        check_unused(live, "v2", ["out.v2"])
