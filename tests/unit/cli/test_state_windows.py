"""``headrace state get`` of windows that are open, of each kind, as tables and as entries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.cli import done

import headrace as hr
from headrace.testing import TestDriver

MINUTE = 60_000


def job(kind: str) -> Any:
    windows: dict[str, Any] = {
        "hops": hr.hopping("3m", every="1m"),
        "visits": hr.session("2m"),
        "hundreds": hr.count_window(100),
        "tens": hr.count_window(10, early_rows=1),
        "so-far": hr.hopping("4m", every="2m", early="1m"),
        "changing": hr.session("2m", "1h", late="update"),
    }

    @hr.job("open")
    def opened(g: hr.Graph) -> None:
        keyed = g.input("in", time="at").partition_by("k")
        for name, window in windows.items():
            keyed.window(window, store=kind, name=name, n=hr.agg.count()).send_to(
                g.output(f"to-{name}")
            )

    return opened


@pytest.mark.parametrize("kind", ["columnar", "memory"])
def test_what_is_kept_of_open_windows(kind: str, tmp_path: Path) -> None:
    with TestDriver(job(kind), tasks=2, home=tmp_path) as driver:
        driver.create("in", {"k": pa.string(), "at": pa.int64()}, time="at")
        driver.feed("in", [{"k": "a", "at": at * MINUTE} for at in (10, 11)])
        driver.run()

        def get(store: str) -> list[dict[str, Any]]:
            text = done("state", "get", "open", store, "a", "--json", "--home", tmp_path)
            return [json.loads(line) for line in text.splitlines()]

        day = "1970-01-01T00"
        assert get("hops") == [
            {
                "pane_start": f"{day}:10:00+00:00",
                "pane_end": f"{day}:11:00+00:00",
                "k": "a",
                "n": 1,
            },
            {
                "pane_start": f"{day}:11:00+00:00",
                "pane_end": f"{day}:12:00+00:00",
                "k": "a",
                "n": 1,
            },
        ]
        [row] = get("visits")
        assert (row["slice_start"], row["n"]) == (f"{day}:10:00+00:00", 2)
        assert (row["__first"], row["__last"]) == (10 * MINUTE, 11 * MINUTE)
        assert get("hundreds") == [{"k": "a", "n": 2, "__n": 2}]
        assert get("tens") == [{"is_sent": True, "k": "a", "n": 2, "__n": 2}]
        found = [(r["window_start"][14:16], r["is_sent"], r["n"]) for r in get("so-far")]
        assert sorted(found) == [
            (start, is_sent, 1) for start in ("08", "10") for is_sent in (False, True)
        ]
        [waiting] = get("changing")
        assert (waiting["slice_start"], waiting["is_sent"], waiting["n"]) == (
            f"{day}:10:00+00:00",
            False,
            2,
        )
        driver.feed("in", [{"k": "b", "at": 20 * MINUTE}])
        driver.run()
        [sent] = get("changing")
        assert (sent["is_sent"], sent["n"]) == (True, 2)
