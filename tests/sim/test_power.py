"""The power goes at any step, and with it all that was not synced: each row is there once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import deltalake
import polars as pl
import pyarrow as pa
import pytest
from tests.sim.processors import NumberedAt
from tests.support.limits import limit, limited
from tests.support.power import Disk, use_disk
from tests.support.soak import more

import headrace as hr
from headrace.testing import FAULT_POINTS, DriverCrash, TestDriver, each_at

OFTEN = {"sweep_every": 3, "base_every": 2, "prune_margin": 1}
STEPS = (
    "bus.",
    "catalog.",
    "commit.",
    "epoch.",
    "feed.",
    "prune.",
    "sink.",
    "slot.",
    "stream.prepared",
    "sweep.",
    "trim.",
    "warehouse.",
)
NEVER = {"slot.remote_sent", "sink.part_sent", "sink.shared"}
POINTS = [point for point in FAULT_POINTS if point.startswith(STEPS) and point not in NEVER]
DAY = 86_400_000


def make(folder: Path) -> hr.Job:
    @hr.job("numbered")
    def numbered(g: hr.Graph) -> None:
        keyed = g.input("in", time="at").partition_by("user", via="bus", name="by-user")
        rows = keyed.process(
            NumberedAt, {"n": int}, returns={"user": str, "number": int, "at": int}
        )
        rows.send_to(g.output("out"))
        rows.send_to(hr.sinks.parquet(folder, merge_bytes=1 << 30, merge_epochs=2, keep="0s"))
        rows.send_to(g.output_table("plain", time="at"))
        rows.send_to(g.output_table("versioned", time="at", format="delta"))

    return numbered


class Machine:
    """One that is started again after each loss of power, with what is left on its disk."""

    def __init__(self, home: Path) -> None:
        self._home, self._folder = home, home / "deep" / "sink"
        self._users, self._fed = random.Random(3), Counter[str]()
        self._now, self.is_feeding = 0, False
        self.driver = self.started()

    def started(self) -> TestDriver:
        driver = TestDriver(
            make(self._folder), home=self._home, memory_bus=False, slots=1, tasks=2, key_groups=8
        )
        use_disk(driver)
        return driver

    def feed(self) -> None:
        users = [f"user {self._users.randrange(3)}" for _ in range(4)]
        self._now += DAY // 2
        self.is_feeding = True
        self.driver.feed("in", [{"user": user, "at": self._now} for user in users])
        self.is_feeding = False
        self._fed.update(users)

    def check(self) -> None:
        """Each message was counted once, and is once in each output."""
        wanted = Counter((u, n) for u, count in self._fed.items() for n in range(1, count + 1))
        assert self.driver.store("n") == dict(self._fed)
        out = Counter((row["user"], row["number"]) for row in self.driver.output("out"))
        table = self._home / "warehouse"
        assert out == wanted
        assert _rows(hr.sinks.committed_files(self._folder)) == wanted
        assert _rows([str(path) for path in (table / "plain").glob("*/*.parquet")]) == wanted
        assert _rows(deltalake.DeltaTable(str(table / "versioned")).file_uris()) == wanted


def _rows(files: list[str]) -> Counter[tuple[str, int]]:
    tables = (pl.read_parquet(path, columns=["user", "number"]) for path in files)
    return Counter(row for table in tables for row in table.rows())


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    limit(monkeypatch, table_small_bytes=0, table_changes=2)
    with limited(**OFTEN):
        yield


CASES = [(point, nth, lucky) for point in POINTS for nth, lucky in ((1, 0), (3, 0), (2, 1), (4, 2))]


@pytest.mark.parametrize(("point", "nth", "luck"), more(CASES[::10], CASES))
def test_what_was_not_synced_is_not_needed(tmp_path: Path, point: str, nth: int, luck: int) -> None:
    """The disk keeps what was synced, and with luck some of the rest."""
    home = tmp_path / "home"
    home.mkdir()
    disk = Disk(home, random.Random(luck) if luck else None)

    passes: list[bool] = []

    def lose() -> None:
        passes.extend([] if machine.is_feeding else [True])  # who feeds would feed once more
        if len(passes) == nth:
            disk.cut()
            raise DriverCrash

    with disk.watched():
        machine = Machine(home)
        columns = {"user": pa.string(), "at": pa.int64()}
        machine.driver.create("in", columns, partitions=2, time="at", key=["user"])
        with suppress(DriverCrash), each_at(point, lose):
            for _ in range(9):
                machine.feed()
                machine.driver.run()
        disk.cut()
        machine.driver.close()
        disk.restore()
        machine.driver = machine.started()
        machine.driver.run()
        machine.check()
        machine.feed()
        machine.driver.run()
        machine.check()
        machine.driver.close()
