"""A served table on disk is sorted and merged within bounds, whatever its size."""

from __future__ import annotations

import random
import threading
from pathlib import Path

from tests.support.serving import DiskEntries

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
