"""Entries on disk are sorted and merged within bounds; those in memory keep their order."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from tests.support.limits import limit
from tests.support.processes import until
from tests.support.serving import DiskEntries, MemoryEntries, RocksDBSettings

ROWS, CHUNK, VALUE = 400_000, 20_000, 200
"""Twenty sorted runs, in no order of keys."""


def held() -> int:
    """Bytes that this process has in memory of its own."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def read() -> int:
    """Bytes that this process has read from files."""
    return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])


def test_runs_are_merged_in_one_pass_and_a_part_of_the_memory(tmp_path: Path) -> None:
    order = [*range(ROWS)]
    random.Random(21).shuffle(order)
    with DiskEntries(tmp_path / "entries", chunk_rows=CHUNK) as entries:
        for at in range(0, ROWS, 5000):
            part = order[at : at + 5000]
            entries.load([b"%012d" % n for n in part], [b"%0*d" % (VALUE, n) for n in part])
        size = sum(one.stat().st_size for one in (tmp_path / "entries").glob("run-*.arrow"))
        assert size > ROWS * VALUE * 0.9
        most, over = [held()], threading.Event()

        def watch() -> None:
            while not over.wait(0.005):
                most.append(held())

        watching = threading.Thread(target=watch)
        watching.start()
        before = read()
        entries.loaded()
        done = read() - before
        over.set()
        watching.join()

        assert done < 1.5 * size  # each run is read once
        assert max(most) - most[0] < 0.35 * size
        assert not [*(tmp_path / "entries").glob("run-*")]
        assert entries.count() == ROWS
        some = random.Random(1).sample(range(ROWS), 500)
        assert entries.get_many([b"%012d" % n for n in some]) == [
            b"%0*d" % (VALUE, n) for n in some
        ]


@pytest.mark.parametrize("churn", [0, 1000])
def test_ranges_are_in_order_whatever_changed_between_them(
    monkeypatch: pytest.MonkeyPatch, churn: int
) -> None:
    limit(monkeypatch, served_recent_keys=6, served_churn=churn)
    dice, wanted = random.Random(churn), dict[bytes, bytes]()
    with MemoryEntries() as entries:
        for turn in range(600):
            some = dice.sample(range(60), dice.randrange(1, 8))
            changes = {b"%02d" % n: dice.choice((None, b"", b"%d" % turn)) for n in some}
            entries.apply(list(changes), list(changes.values()))
            wanted |= {key: value for key, value in changes.items() if value is not None}
            wanted = {key: one for key, one in wanted.items() if changes.get(key, one) is not None}
            if dice.random() < 0.4:
                low, high = (b"%02d" % dice.randrange(60) for _ in range(2))
                within = [(k, v) for k, v in sorted(wanted.items()) if low <= k < high]
                assert entries.scan(low, high, 5) == within[:5]
                assert entries.scan(b"", None, 100) == sorted(wanted.items())


def test_keys_that_are_set_again_do_not_add_up(tmp_path: Path) -> None:
    small = RocksDBSettings(memtable_bytes=64 << 10)
    keys = [b"%06d" % n for n in range(2000)]
    with DiskEntries(tmp_path / "entries", settings=small) as entries:
        entries.load(keys, keys)
        entries.loaded()
        assert entries.count() == len(keys)

        def set_again() -> bool:
            entries.apply(keys, keys)
            return entries.count() < 20 * len(keys)

        for _ in range(200):
            set_again()
        until(set_again, "files to be compacted")
