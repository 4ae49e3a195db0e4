"""Four keyed levels in one job and one epoch: windows, a class of two streams, windows, totals."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from tests.support.soak import more

import headrace as hr
from headrace.testing import TestDriver

PAUSE = 35
LEVELS = {"by_user": 2, "by_team": 3, "by_what": 2, "by_score": 1}


class Team:
    """Adds up the counts of a team, and sends the sum once it has been quiet for a while."""

    def process_counts(self, count: Any, context: hr.Context) -> None:
        assert context.time is not None
        sums, quiet = context.store("sums"), context.store("quiet")
        sums.put(context.key, sums.get(context.key, 0) + count.n)
        if (before := quiet.get(context.key)) is not None:
            context.cancel_timer(before)
        quiet.put(context.key, context.time + PAUSE)
        context.set_timer(context.time + PAUSE)

    def process_news(self, news: Any, context: hr.Context) -> None:
        n = context.store("sums").get(context.key, 0)
        context.emit({"team": context.key, "what": "news", "score": n})

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
        sums = context.store("sums")
        context.emit({"team": timer.key, "what": "quiet", "score": sums.get(timer.key, 0)})
        sums.delete(timer.key)


def job_of(via: str) -> Any:
    @hr.job("teams")
    def teams(g: hr.Graph) -> None:
        clicks = g.input("clicks", time="at", out_of_orderness="5ms")
        by_user = clicks.partition_by("user", tasks=LEVELS["by_user"], name="by_user")
        per_user = by_user.window(hr.tumbling("10ms", allowed_lateness="3ms"), n=hr.agg.count())
        counts = per_user.map((hr.col("user") % 4).alias("team"), "n")
        news = g.input("news", time="at", out_of_orderness="5ms")
        told = g.process(
            {
                "counts": counts.partition_by(
                    "team", tasks=LEVELS["by_team"], via=via, name="by_team"
                ).in_order(),
                "news": news.partition_by("team", via=via, name="news_by_team").in_order(),
            },
            Team,
            stores=[hr.store(name, int, "memory") for name in ("sums", "quiet")],
            returns={"team": int, "what": str, "score": int},
        )
        told.send_to(g.output("told"))
        by_what = told.partition_by("what", tasks=LEVELS["by_what"], name="by_what")
        sums = by_what.window(hr.tumbling("20ms"), score=hr.agg.sum("score"), n=hr.agg.count())
        sums.send_to(g.output("sums"))
        by_score = sums.partition_by("n", tasks=LEVELS["by_score"], via=via, name="by_score")
        last = by_score.aggregate(every="50ms", score=hr.agg.sum("score"))
        last.send_to(g.output("last"))

    return teams


def rows_of(seed: int, count: int, **columns: int) -> list[dict[str, int]]:
    """Rows of two streams whose times rise, most of them in order."""
    rng, now, rows = random.Random(seed), 1_000, []
    for _ in range(count):
        now += rng.randrange(4)
        row = {name: rng.randrange(most) for name, most in columns.items()}
        rows.append({**row, "at": now - rng.randrange(9)})
    return rows


CLICKS, NEWS = rows_of(1, 240, user=9), rows_of(2, 90, team=4)
POINTS = ["slot.ran", "epoch.level_done", "slot.segment_written", "commit.published"]
OUTPUTS = ("told", "sums", "last")


def run(via: str, max_rows: int, seed: int | None) -> dict[str, Counter[Any]]:
    """What the outputs have; with a seed the job is fed, crashed and rescaled at random."""
    rng = random.Random(seed)
    with TestDriver(job_of(via), key_groups=16, max_rows=max_rows, hosts=2) as driver:
        columns = {"user": pa.int64(), "at": pa.int64()}
        driver.create("clicks", columns, partitions=3, key=("user",))
        driver.create("news", {"team": pa.int64(), "at": pa.int64()}, partitions=2, key=("team",))
        if seed is None:
            driver.feed("clicks", CLICKS)
            driver.feed("news", NEWS)
        else:
            for begin in range(0, 240, 30):
                driver.feed("clicks", CLICKS[begin : begin + 30])
                driver.feed("news", NEWS[begin * 3 // 8 : (begin + 30) * 3 // 8])
                match rng.randrange(4):
                    case 0:
                        driver.advance_with_crash(rng.choice(POINTS), nth=rng.randint(1, 3))
                    case 1:
                        driver.run()
                        driver.crash(lose_hosts=[rng.randrange(2)])
                    case 2:
                        driver.run()
                        choices = [(p, s) for p in driver.parts for s in p.state.task_counts]
                        part, stage = rng.choice(choices)
                        part.rescale(rng.choice(counts_of(via, stage)), stage)
                driver.run()
        driver.finish()
        return {
            name: Counter(tuple(row.items()) for row in driver.output(name)) for name in OUTPUTS
        }


def counts_of(via: str, stage: str) -> list[int]:
    """The numbers of tasks that a stage may have: of one behind the bus, what divides its first."""
    behind = {"by_team+news_by_team": [1, 3], "by_score": [1]} if via == "bus" else {}
    return behind.get(stage, [1, 2, 3, 5])


CUTS = [(25, 1), (40, 2), (1_000, 3), (40, 4)]
EVERY = list(product(CUTS, ["exchange", "bus"]))
EXPECTED: dict[str, Counter[Any]] = {}


@pytest.fixture
def expected() -> dict[str, Counter[Any]]:
    """One bounded run, all in one epoch."""
    if not EXPECTED:
        EXPECTED.update(run("exchange", 1_000_000, None))
    return EXPECTED


def test_all_levels_do_something(expected: dict[str, Counter[Any]]) -> None:
    assert all(sum(rows.values()) > 3 for rows in expected.values())
    quiet = [dict(row) for row in expected["told"].elements() if dict(row)["what"] == "quiet"]
    # Nothing is lost on the way but what was late: each click is in one sum.
    late = 240 - sum(row["score"] for row in quiet)
    assert 0 <= late < 24


@pytest.mark.parametrize(("cut", "via"), more(EVERY[::3], EVERY))
def test_results_are_those_of_one_epoch(
    via: str, cut: tuple[int, int], expected: dict[str, Counter[Any]]
) -> None:
    """Whatever dies, however epochs are cut, and however many tasks each level has."""
    assert expected == run(via, *cut)


def test_a_bounded_run_ends_all_levels_whatever_the_epochs(
    expected: dict[str, Counter[Any]],
) -> None:
    assert expected == run("exchange", 40, None)
