"""What the memory of a worker does while state grows, as JSON and PNG; see docs/benchmarks.md.

    python bench/memory.py [--mb 100] [--times 10] [--store rocksdb] [--out docs/benchmarks]

Runs the job with so much state, and with ten times as much, under the same settings: caches and
buffers of 32 MiB each. Both runs have the same messages, but for their ids: all ids are written
once, then random ones. The resident memory of the larger Python worker, without what is mapped
from files, is sampled four times a second.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from headrace.bench.state_size import ids_of, run_through, settings_of
from headrace.bench.store_rates import snapshot
from headrace.bench.stores import figure, machine

STORES = ["rocksdb", "columnar"]
SAMPLE_S = 0.25
MIB = 1 << 20
LIMITS: dict[str, Any] = {
    "state__cache_bytes": 32 * MIB,
    "state__block_cache_bytes": 32 * MIB,
    "state__write_buffer_bytes": 24 * MIB,
    "state__overlay_bytes": 32 * MIB,
    "epoch__max_rows": 50_000,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--store", choices=STORES, action="append")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--messages", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        print(json.dumps(watched(chosen.store[0], chosen.mb, chosen.messages)))
        return
    stores = {}
    for store in chosen.store or STORES:
        messages = 2 * ids_of(store, chosen.mb * chosen.times)
        small, large = (alone(store, chosen.mb * times, messages) for times in (1, chosen.times))
        stores[store] = {
            "small": small,
            "large": large,
            "ratio": round(large["rss_p95"] / small["rss_p95"], 2),
        }
    limits = {name.replace("__", "."): value for name, value in LIMITS.items()}
    found = {"machine": machine(), "settings": limits, "stores": stores}
    print(json.dumps({**found, "stores": {k: without_samples(v) for k, v in stores.items()}}))
    if chosen.out:
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / "memory.json").write_text(json.dumps(found) + "\n")
        draw(found, chosen.out / "memory.png")


def without_samples(one: dict[str, Any]) -> dict[str, Any]:
    return {
        size: {k: v for k, v in part.items() if k != "samples"} if isinstance(part, dict) else part
        for size, part in one.items()
    }


def alone(store: str, megabytes: int, messages: int) -> dict[str, Any]:
    """Run in a process of its own, whose workers have no memory of another run."""
    command = [sys.executable, __file__, "--child", "--store", store, "--mb", str(megabytes)]
    command += ["--messages", str(messages)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def watched(store: str, megabytes: int, messages: int) -> dict[str, Any]:
    home = Path(tempfile.mkdtemp(prefix="headrace-memory-"))
    columnar = store == "columnar"
    limits = LIMITS | ({"epoch__max_rows": 1_000_000} if columnar else {})
    settings = settings_of(home, **limits)
    count = ids_of(store, megabytes)
    ids = np.arange(1, count + 1)
    again = np.random.default_rng(5).integers(1, count + 1, messages - count)
    state = {"bytes": 0}
    samples: list[tuple[float, int, int]] = []
    done = threading.Event()

    def sample() -> None:
        began = time.perf_counter()
        while not done.wait(SAMPLE_S):
            sizes = [resident(pid) for pid in snapshot().workers]
            # The daemon that forks the workers is one of them, and smaller.
            samples.append(
                (round(time.perf_counter() - began, 2), max(sizes, default=0), state["bytes"])
            )

    def note(epoch: Any) -> None:
        state["bytes"] = epoch.state_bytes

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        run_through(store, settings, np.concatenate([ids, again]).astype(np.int64), note)
    finally:
        done.set()
        thread.join()
        # Tables lie in the changelog itself.
        on_disk = size_of(settings.jobs_dir if columnar else settings.state_dir)
        shutil.rmtree(home, ignore_errors=True)  # workers may still tidy up there
    sizes = np.array([size for _, size, held in samples if held])  # not while it starts
    return {
        "mb": megabytes,
        "state_bytes": state["bytes"],
        "on_disk_bytes": on_disk,
        "rss_p50": int(np.median(sizes)),
        "rss_p95": int(np.quantile(sizes, 0.95)),
        "rss_max": int(sizes.max()),
        "samples": samples,
    }


def size_of(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        with suppress(OSError):  # merged away meanwhile
            total += file.stat().st_size
    return total


def resident(pid: int) -> int:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(pages[1]) - int(pages[2])) * 4096  # without what is mapped from files


def draw(found: dict[str, Any], path: Path) -> None:
    with figure(path, "Memory of the larger worker while state grows", 11, 4) as made:
        panels = made.subplots(1, len(found["stores"]), squeeze=False, sharey=True)[0]
        for axes, (store, one) in zip(panels, found["stores"].items(), strict=True):
            for size, color in (("small", "#2f6f8f"), ("large", "#c8452f")):
                part = one[size]
                at = [sample[0] / part["samples"][-1][0] for sample in part["samples"]]
                words = f"{part['mb']:,} MB of state"
                axes.plot(at, [s[1] / MIB for s in part["samples"]], color=color, label=words)
                axes.plot(at, [s[2] / MIB for s in part["samples"]], ":", color=color)
            axes.set_title(f"{store} (dotted: live state)")
            axes.set_xlabel("part of the run")
            axes.set_yscale("log")
            axes.legend(frameon=False)
            axes.grid()
        panels[0].set_ylabel("MiB")


if __name__ == "__main__":
    main()
