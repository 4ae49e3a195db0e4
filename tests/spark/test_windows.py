"""Windows of every kind in Spark: in small epochs over two runs, and in one bounded run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.spark.runs import World

import headrace as hr
from headrace.coordinator.loop import Control
from headrace.coordinator.summary import EpochSummary
from headrace.spark.run import run_job

pytestmark = pytest.mark.spark

OUTPUTS = (
    *("hops", "trail", "visits", "dozens", "all", "early", "everybody", "spans"),
    *("growing", "quiet", "again"),
)


def spans(key: int, window: Any, messages: list[Any]) -> Iterable[dict[str, int]]:
    """The least and the greatest value of a session."""
    values = [message.v for message in messages]
    yield {"low": min(values), "high": max(values)}


def windows() -> Any:
    @hr.job("windows")
    def job(g: hr.Graph) -> None:
        events = g.input("events", time="at", lateness="2s")
        keyed = events.partition_by("id")
        kinds: dict[str, Any] = {
            "hops": hr.hopping("9s", every="3s"),
            "trail": hr.sliding("30s"),
            "visits": hr.session("15s"),
            "dozens": hr.count_window(12),
            "all": hr.global_window(),
            "early": hr.tumbling("1m", early="10s", updates="retract"),
            "growing": hr.session("15s", early="5s", updates="retract"),
            "quiet": hr.hopping("30s", "15s", early_idle="4s", updates="add"),
            "again": hr.sliding("30s", "1m", late="update", updates="retract"),
        }
        for name, window in kinds.items():
            keyed.window(
                window,
                name=name,
                n=hr.agg.count(),
                s=hr.agg.sum("v"),
                d=hr.agg.approx_distinct("v"),
            ).send_to(g.output(name))
        events.window(hr.tumbling("10s"), n=hr.agg.count(), s=hr.agg.sum("v")).send_to(
            g.output("everybody")
        )
        each = keyed.process_window(
            hr.session("15s"), spans, {"low": int, "high": int}, uses=["v"], name="spanned"
        )
        each.send_to(g.output("spans"))

    return job


def outputs(world: World) -> dict[str, Counter[str]]:
    return {name: Counter(map(repr, world.rows(name))) for name in OUTPUTS}


def left(rows: Counter[str]) -> Counter[str]:
    """Return the results that are not taken back."""
    kept: Counter[str] = Counter()
    for row, times in rows.items():
        sign = -1 if "'is_retraction': True" in row else 1
        kept[row.replace("'is_retraction': True", "'is_retraction': False")] += sign * times
    return +kept


@pytest.mark.usefixtures("spark")
def test_a_stream_and_a_bounded_run_have_equal_windows(tmp_path: Path) -> None:
    found = []
    for name, sets in (("stream", ["epoch.max_rows=60"]), ("bounded", [])):
        world = World(tmp_path / name / "home")
        world.feed(150)
        if name == "stream":
            control = Control()

            def stop_soon(summary: EpochSummary, control: Control = control) -> None:
                if summary.epoch == 2:
                    control.stop.set()

            run_job(windows(), world.settings(*sets), control=control, on_epoch=stop_soon)
        result = run_job(windows(), world.settings(*sets, "job.bounded=true"))
        assert result.state.ended
        found.append(outputs(world))
    stream, bounded = found
    assert stream["dozens"].total() == bounded["dozens"].total()
    for name in set(OUTPUTS) - {"dozens", "again"}:
        assert stream[name] == bounded[name], name
    rows = {name: world.rows(name) for name in OUTPUTS}
    assert all(rows.values())
    assert sum(row["n"] for row in rows["visits"]) == 300
    assert sum(row["n"] for row in rows["hops"]) == 900
    assert sum(row["n"] for row in rows["everybody"]) == 300
    assert len(rows["trail"]) == len({(row["id"], row["window_end"]) for row in rows["trail"]})
    for name in ("early", "growing"):
        taken = sum(-row["n"] if row["is_retraction"] else row["n"] for row in rows[name])
        assert taken == 300
    assert sum(row["n"] for row in rows["quiet"]) == 600
    held = [left(one["again"]) for one in found]
    assert held[0] == held[1]
