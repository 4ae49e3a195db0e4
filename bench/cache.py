"""Whether the memory of RocksDB stores levels over epochs: `python bench/cache.py [--epochs N]`.

Four stores in one process, no job: each epoch reads and writes a few of 1,000 keys, and every
eighth is flushed to files, so files are merged all the time. Blocks of files that are gone stay in
the block cache until others need the place: memory rises until the cache is full, and no further.
Run once for each size of cache, in a process of its own. Prints by how much the anonymous memory of
the process rose since a tenth of the epochs, what the block cache took of it, and the slope of the
rest by a straight line: where that is flat, nothing leaks.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from headrace.state.backend import Position
from headrace.state.rocksdb import RocksDBBackend, RocksDBSettings

STORES, KEYS, WRITTEN, FLUSHED = 4, 250, 5, 8
SAMPLES = 200
MIB = 1 << 20


def anonymous() -> int:
    """Resident bytes of this process that are no files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def cached(store: RocksDBBackend) -> int:
    """Bytes in the block cache, which all stores of a process share."""
    family = store._database._families["n"]  # type: ignore[union-attr]  # noqa: SLF001
    return family.property_int_value("rocksdb.block-cache-usage") or 0


def run(epochs: int, settings: RocksDBSettings) -> list[tuple[int, int, int]]:
    """Return epochs, and the memory and the block cache after each of them."""
    found = []
    with tempfile.TemporaryDirectory(prefix="headrace-cache-") as home:
        stores = [RocksDBBackend(Path(home, str(n)), ["n"], "", settings) for n in range(STORES)]
        for epoch in range(1, epochs + 1):
            keys = sorted(b"%08d" % ((epoch * 7 + n) % KEYS) for n in range(WRITTEN))
            for store in stores:
                store.get_many("n", keys)
                changes = {"n": (keys, [b"%08d" % epoch] * WRITTEN)}
                store.apply(changes, Position("line", epoch, f"{epoch:016}"))
                if epoch % FLUSHED == 0:
                    store.flush(wait=False)
            if epoch % max(1, epochs // SAMPLES) == 0:
                found.append((epoch, anonymous(), cached(stores[0])))
        for store in stores:
            store.close()
    return found


def report(cache_mib: int, samples: list[tuple[int, int, int]]) -> str:
    """One row of the table."""
    at, sizes, blocks = np.array(samples[len(samples) // 10 :]).T
    half, last = len(at) // 2, len(at) - 1
    rose = [
        f"{(held[n] - held[0]) / MIB:.1f} MiB" for n in (half, last) for held in (sizes, blocks)
    ]
    slope = np.polyfit(at, sizes - blocks, 1)[0]
    return f"| {cache_mib} MiB | {' | '.join(rose)} | {slope:,.0f} B |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=40_000)
    parser.add_argument("--cache", type=int, nargs="+", default=[8, 32, 128], help="MiB")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        settings = RocksDBSettings.within(given.cache[0] * MIB, 6 * MIB)
        print(report(given.cache[0], run(given.epochs, settings)), flush=True)
        return
    half = f"{given.epochs * 11 // 20:,}"
    columns = ["cache", f"memory after {half}", "block cache", f"after {given.epochs:,}"]
    columns += ["block cache", "the rest, an epoch"]
    print(f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", sep="\n", flush=True)
    for cache in given.cache:
        words = ["--child", "--cache", str(cache), "--epochs", str(given.epochs)]
        subprocess.run([sys.executable, __file__, *words], check=True)


if __name__ == "__main__":
    main()
