"""Scripts: what happens among the rows changes no result, and does happen."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from tests.support.soak import more

import headrace as hr
from headrace.errors import InvalidInputError
from headrace.testing import (
    TestDriver,
    advance_clock,
    crash,
    epoch,
    finish,
    idle,
    jump_clock,
    restart,
    rows,
    settled,
)

COLUMNS = {"k": pa.string(), "at": pa.int64()}
SEEN = hr.store("seen", int, "memory")
POINTS = ("slot.ran", "slot.segment_written", "epoch.before_commit", "commit.published")


def refuse(row: Any) -> bool:
    return bool(row.k[0])


@hr.job("played")
def played(g: hr.Graph) -> None:
    events = g.input("events", time="at", out_of_orderness="1s", idle="20s")
    kept = events.filter(refuse, on_error="dead_letter", name="named")
    keyed = kept.partition_by("k")
    keyed.window(hr.tumbling("10s"), name="w", n=hr.agg.count()).send_to(g.output("windows"))
    keyed.window(hr.session("30s"), name="visits", n=hr.agg.count()).send_to(g.output("visits"))
    keyed.process(Watch, stores=[SEEN], name="watch", returns={"k": str}).send_to(
        g.output("alarms")
    )
    keyed.process_window(hr.tumbling("1m"), whole, name="mine", returns={"ats": str}).send_to(
        g.output("whole")
    )


class Watch:
    def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("seen")
        store.put(message.k, store.get(message.k, 0) + 1)
        context.set_timer(context.wall_ms + 60_000, wall=True, name="quiet")

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
        context.emit({"k": timer.key})


def whole(key: str, window: Any, messages: Any) -> Any:
    yield {"ats": ",".join(str(one.at) for one in messages)}


def driver(**options: Any) -> TestDriver:
    made = TestDriver(played, tasks=2, **options)
    made.create("events", COLUMNS, partitions=2, time="at", key=["k"])
    return made


def row(k: str, at: int) -> dict[str, Any]:
    return {"k": k, "at": at}


def windows(made: TestDriver) -> Counter[Any]:
    return Counter((r["k"], r["window_start"].second, r["n"]) for r in made.output("windows"))


def test_a_crash_among_the_rows_loses_nothing() -> None:
    with driver(hosts=2) as made:
        script: list[Any] = [
            row("a", 1_000),
            row("b", 2_000),
            crash("slot.ran"),
            row("a", 3_000),
            crash("commit.published"),
            restart(),
            crash(lose_hosts=[0]),
            row("a", 9_000),
            finish(),
        ]
        made.play("events", script)
        assert windows(made) == {("a", 0, 3): 1, ("b", 0, 1): 1}
        assert made.store("seen") == {"a": 3, "b": 1}


def test_a_crash_that_does_not_happen_is_a_mistake() -> None:
    with driver() as made:
        made.play("events", [row("a", 1)])
        with pytest.raises(InvalidInputError, match=r"nothing died.*'slot.ran' 1 times"):
            made.play("events", [crash("slot.ran")])
        with pytest.raises(InvalidInputError, match="unknown fault points"):
            made.play("events", [row("a", 2), crash("slot.run")])


def test_a_clock_that_jumps_rings_no_timer_until_it_is_accepted() -> None:
    with driver() as made:
        made.play("events", [row("a", 1), jump_clock("30d"), row("b", 1), jump_clock("-90d")])
        assert made.output("alarms") == []
        made.play("events", [jump_clock(120 * 86_400_000)])
        made.accept_clock()
        made.run()
        assert made.output("alarms") == [{"k": "a"}, {"k": "b"}]


def test_time_passes_and_timers_ring() -> None:
    with driver() as made:
        made.play("events", [row("a", 1), advance_clock("59s"), row("b", 1), advance_clock(999)])
        assert made.output("alarms") == []
        assert [(t["k"], t["clock"], t["name"]) for t in made.timers("watch")] == [
            ("a", "wall", "quiet"),
            ("b", "wall", "quiet"),
        ]
        made.play("events", [advance_clock(1)])
        assert made.output("alarms") == [{"k": "a"}]
        assert [t["k"] for t in made.timers("watch")] == ["b"]
        with pytest.raises(InvalidInputError, match=r"no timers; those that do: \['watch'\]"):
            made.timers("w")


def test_an_idle_partition_holds_nothing_back() -> None:
    with driver() as made:
        made.play(
            "events",
            [
                rows("events", row("a", 1_000), partition=0),
                rows("events", row("b", 1_000), partition=1),
                idle("events"),
                rows("events", row("b", 30_000), partition=1),
                settled(),
            ],
        )
        assert windows(made) == {("a", 0, 1): 1, ("b", 0, 1): 1}
        made.play("events", [rows("events", row("a", 2_000), partition=0)])
        assert made.counts["late"] >= 1
        with pytest.raises(InvalidInputError, match="'windows' is never idle"):
            made.play("events", [idle("windows")])


def test_open_windows_show_their_bounds_and_what_they_hold() -> None:
    with driver() as made:
        made.play("events", [row("a", 1_000), epoch(), row("a", 4_000), row("b", 12_000)])
        shown = [
            (r["k"], r["window_start"].second, r["window_end"].second, r["n"])
            for r in made.windows("w")
        ]
        assert shown == [("a", 0, 10, 2), ("b", 10, 20, 1)]
        [a, b] = made.windows("visits", partials=True)
        assert (a["k"], a["n"], a["__first"], a["__last"]) == ("a", 2, 1_000, 4_000)
        assert b["k"] == "b"
        assert len(made.windows("mine", partials=True)) == 2
        seen = sorted(made.rows("seen"), key=str)
        assert seen == [{"k": "a", "value": 2}, {"k": "b", "value": 1}]
        assert made.watermarks["events"] is None or made.watermarks["events"] <= 3_000
        assert made.operators["w"]["received"] == 3
        with pytest.raises(InvalidInputError, match="holds values, not windows"):
            made.windows("seen")
        with pytest.raises(InvalidInputError, match="no store 'sene'; it has"):
            made.store("sene")


def test_dead_letters_are_shown_with_their_records() -> None:
    with driver() as made:
        assert made.dead_letters() == []
        made.play("events", [row("a", 1), row("", 2)])
        [letter] = made.dead_letters()
        assert (letter["operator"], letter["record"]) == ("named", row("", 2))
        assert made.counts["in"] == 2


def rough_script(seed: int, *, is_rough: bool) -> list[Any]:
    """Rows in any order of event time; where it is rough, with what may happen among them."""
    rng = random.Random(seed)
    script: list[Any] = []
    for _ in range(20):
        script.append(row(rng.choice("abc"), rng.randrange(60_000)))
        happens = rng.choice(
            [None, None, epoch(), restart(), settled(), *(crash(p) for p in POINTS)]
        )
        if is_rough and happens is not None:
            script.append(happens)
    return [*script, finish()]


@pytest.mark.parametrize("seed", more(range(2), range(200), share=100))
def test_what_happens_among_the_rows_changes_no_result(seed: int) -> None:
    """Late is judged by the log alone."""
    found = []
    for is_rough in (False, True):
        with driver() as made:
            made.play("events", rough_script(seed, is_rough=is_rough))
            sent = [Counter(map(str, made.output(name))) for name in ("windows", "visits", "whole")]
            found.append((sent, made.counts["late"], made.store("seen")))
    assert found[0] == found[1]
    assert found[0][1] > 0
