"""The demo as users start it, over the whole year, against DuckDB; the soak suite adds the other
mode, and compares the two."""

from __future__ import annotations

import os
import re
import shlex
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from tests.support.processes import WITH_FRAMES
from tests.support.soak import more

from headrace.bus import Bus, MemoryBus, open_bus
from headrace.demo.flights import FLIGHTS_SHAPE
from headrace.demo.results import OFFSET, OUTPUTS, PARTITION, check_outputs, read_all

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
FLIGHTS, CANCELLED = FLIGHTS_SHAPE[0], 8_255
SHARE = 50
"""CI runs the demo a second time, for five tests, once in ten times."""

KEYS = {
    "route_delays": ["origin", "dest"],
    "carrier_totals": ["carrier"],
    "worst_routes": ["hour"],
}


@dataclass(frozen=True)
class Ran:
    """A finished demo: what it printed, its folder, and its bus."""

    text: str
    folder: Path
    bus: Bus


def run(mode: str, home: Path) -> Ran:
    environ = {n: v for n, v in os.environ.items() if not n.startswith("HEADRACE")}
    environ |= WITH_FRAMES
    command = [sys.executable, "-m", "headrace.cli.main", "demo", "--mode", mode]
    done = subprocess.run(
        [*command, "--home", str(home)],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Ran(done.stdout, home / "demo", open_bus(home / "demo" / "bus"))


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run("stream", tmp_path_factory.mktemp("stream"))


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run("bounded", tmp_path_factory.mktemp("bounded"))


@pytest.fixture(params=more(["stream"], ["stream", "bounded"], share=SHARE))
def ran(request: pytest.FixtureRequest) -> Ran:
    return request.getfixturevalue(request.param)


def test_the_whole_year_is_on_the_bus_in_event_time_order(ran: Ran) -> None:
    flights = ran.bus.stream("flights")
    assert flights.ends() == [84_052, 84_094, 83_587, 85_043]
    for partition in range(4):
        batches = flights.read(partition, 0, columns=["departed_at"])
        times = np.concatenate([found.batch.column(0).cast(pa.int64()) for found in batches])
        assert (np.diff(times) >= 0).all()
    ends = {name: sum(ran.bus.stream(name).ends()) for name in ran.bus.names()}
    inputs = {"flights": FLIGHTS, "weather": 26_115, "planes": 3_322, "airports": 1_458}
    assert inputs | {"airlines": 16} == {n: e for n, e in ends.items() if n not in OUTPUTS}


def test_outputs_are_exactly_those_of_duckdb(ran: Ran) -> None:
    comparisons = check_outputs(ran.bus)
    assert [comparison.output for comparison in comparisons] == list(OUTPUTS)
    assert all(comparison.is_equal for comparison in comparisons), comparisons
    routes = read_all(ran.bus.stream("route_delays"))
    assert sum(routes["flights"].to_pylist()) == FLIGHTS - CANCELLED


@pytest.mark.soak(share=SHARE)
def test_a_stream_and_a_bounded_run_send_the_same_for_each_key(stream: Ran, bounded: Ran) -> None:
    def by_key(ran: Ran, output: str) -> pl.DataFrame:
        frame = pl.from_arrow(read_all(ran.bus.stream(output)))
        assert isinstance(frame, pl.DataFrame)
        return frame.sort(KEYS[output], maintain_order=True).drop(PARTITION, OFFSET)

    for output in OUTPUTS:
        assert by_key(bounded, output).equals(by_key(stream, output)), output


def test_it_draws_a_chart_and_says_where(ran: Ran) -> None:
    path = ran.folder / "delay-radar.png"
    assert str(path) in ran.text
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) > (1000, 600)
    assert 50_000 < len(data) < 2_000_000


def test_the_summary_tells_what_was_done_and_where_to_look(ran: Ran) -> None:
    assert f"{FLIGHTS:,} in " in ran.text
    assert "finds the same 346,644 rows" in ran.text
    assert f"headrace bus tail worst_routes --home {ran.folder}" in ran.text
    [command] = re.findall(r"look around +(.+ bus ls .+)", ran.text)
    listed = subprocess.run(
        shlex.split(command), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "worst_routes" in listed.stdout, "as it is printed, in any environment"
    assert "\x1b" not in ran.text


def test_the_check_notices_a_wrong_digit_a_lost_row_and_a_wrong_order(stream: Ran) -> None:
    routes = read_all(stream.bus.stream("route_delays"))
    digit = pa.array(np.where(np.arange(len(routes)) == 7, 1, 0))
    changed = routes.set_column(
        routes.schema.get_field_index("flights"),
        "flights",
        pa.compute.add(routes["flights"], digit),
    )
    totals = read_all(stream.bus.stream("carrier_totals"))
    with MemoryBus() as bus:
        _copy(stream.bus, bus, "route_delays", changed)
        _copy(stream.bus, bus, "carrier_totals", totals.slice(1))
        worst = read_all(stream.bus.stream("worst_routes"))
        _copy(stream.bus, bus, "worst_routes", worst.take(np.arange(len(worst))[::-1]))
        found = {c.output: (c.missing, c.unexpected, c.disordered) for c in check_outputs(bus)}
    assert found["route_delays"] == (1, 1, 0)
    assert found["carrier_totals"] == (1, 0, 0)
    assert found["worst_routes"][:2] == (0, 0)
    assert found["worst_routes"][2] > 0


def _copy(source: Bus, target: Bus, name: str, rows: pa.Table) -> None:
    stream = target.create(source.stream(name).spec)
    for partition in range(stream.spec.partitions):
        chosen = rows.filter(pa.compute.equal(rows[PARTITION], partition))
        stream.append(partition, chosen.drop_columns([PARTITION, OFFSET]))
