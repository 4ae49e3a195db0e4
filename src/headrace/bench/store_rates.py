"""Rows a second of a case once it is warm, with the processor, disk and network that it used."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace import extras
from headrace.bench.delay import DelayProxy
from headrace.bench.readwrite import counted, random_ids
from headrace.bench.store_jobs import (
    EPOCHS,
    JOB,
    NAMESPACE,
    OUTPUT,
    Case,
    Size,
    Workload,
    create_streams,
    feed,
    fill,
    make_job,
)
from headrace.bus import Bus, open_bus
from headrace.clock import SystemClock
from headrace.config import Settings, load_settings
from headrace.coordinator.epoch_records import EpochSummary
from headrace.coordinator.job_run import RunResult
from headrace.errors import InternalError
from headrace.records.keys import encode_key
from headrace.spark.run import run_job
from headrace.testing.servers import RedisServer

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Used:
    """What one process has used since it began."""

    cpu_s: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0

    def __sub__(self, other: Used) -> Used:
        """Return what was used since."""
        return Used(
            self.cpu_s - other.cpu_s,
            self.read_bytes - other.read_bytes,
            self.written_bytes - other.written_bytes,
        )


@dataclass(frozen=True)
class Snapshot:
    """What all processes of a run have used: Python workers, driver, JVM, servers."""

    workers: dict[int, Used]
    driver: dict[int, Used]
    jvm: dict[int, Used]
    servers: dict[int, Used]

    def since(self, before: Snapshot) -> dict[str, Used]:
        """Return what each part used after an earlier snapshot."""
        return {
            part: _sum(getattr(self, part), getattr(before, part))
            for part in ("workers", "driver", "jvm", "servers")
        }


def snapshot(servers: tuple[int, ...] = ()) -> Snapshot:
    """Look at this process, all that it started, and the servers named."""
    mine = _descendants(os.getpid())
    java = [pid for pid in mine if _name(pid) == "java"]
    python = [pid for root in java for pid in _descendants(root) if _name(pid) != "java"]
    return Snapshot(_used(python), _used([os.getpid()]), _used(java), _used(list(servers)))


def _sum(after: dict[int, Used], before: dict[int, Used]) -> Used:
    parts = [used - before.get(pid, Used()) for pid, used in after.items()]
    return Used(
        sum(part.cpu_s for part in parts),
        sum(part.read_bytes for part in parts),
        sum(part.written_bytes for part in parts),
    )


def _used(pids: list[int]) -> dict[int, Used]:
    found = {}
    for pid in pids:
        with suppress(OSError):  # it ended meanwhile
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS
            lines = Path(f"/proc/{pid}/io").read_text().splitlines()
            io = {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}
            found[pid] = Used(cpu_s, io["read_bytes"], io["write_bytes"])
    return found


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


MASTER, TASKS = "local[2]", 4
PIECE = 10_000


@dataclass(frozen=True)
class Server:
    """A Redis of its own for one run, as far away as the case wants it."""

    redis: RedisServer
    url: str
    client: Any

    def network(self) -> tuple[int, int]:
        """Return the bytes that it has received and sent."""
        stats = self.client.info("stats")
        return int(stats["total_net_input_bytes"]), int(stats["total_net_output_bytes"])

    def fill(self, ids: int) -> None:
        """Give every id a value."""
        values = np.random.default_rng(2).integers(0, 1 << 40, ids, np.int64).tolist()
        for begin in range(0, ids, PIECE):
            part = range(begin, min(begin + PIECE, ids))
            self.client.mset({_key(n + 1): msgspec.msgpack.encode(values[n]) for n in part})

    def total(self) -> int:
        """Return the sum of all counts."""
        keys = list(self.client.scan_iter(f"{NAMESPACE}*", count=PIECE))
        pieces = [self.client.mget(keys[at : at + PIECE]) for at in range(0, len(keys), PIECE)]
        return sum(msgspec.msgpack.decode(raw) for piece in pieces for raw in piece)


def _key(one: int) -> bytes:
    return NAMESPACE.encode() + encode_key((one,))


def _client_library() -> Any:
    return extras.load("redis", "measuring remote stores", "name others with --only")


@contextmanager
def server_of(case: Case, folder: Path) -> Iterator[Server | None]:
    """Start what a case needs beside the job, and end it."""
    if not case.is_remote:
        yield None
        return
    with RedisServer(folder / "redis") as redis:
        client = _client_library().Redis.from_url(redis.url)
        try:
            if not case.delay_ms:
                yield Server(redis, redis.url, client)
                return
            with DelayProxy(redis.port, case.delay_ms) as proxy:
                yield Server(redis, proxy.url, client)
        finally:
            client.close()


def url_of(server: Server | None) -> str | None:
    """Return where a case's store is, if it is on a server."""
    return None if server is None else server.url


def settings_of(home: Path, case: Case, *, epoch_rows: int, bounded: bool) -> Settings:
    """Return the settings of a run."""
    values: dict[str, Any] = {
        "home": home,
        "spark.master": MASTER,
        "job.tasks": TASKS,
        "job.bounded": str(bounded).lower(),
        "epoch.max_rows": max(1, epoch_rows),
    }
    if not case.is_cached:
        values |= {"state.cache_bytes": 0, "state.block_cache_bytes": 0}
    return load_settings(None, [f"{name}={value}" for name, value in values.items()], {})


class EpochRecorder:
    """What an epoch after the other leaves: when it ended, and what had been used by then."""

    def __init__(self, server: Server | None) -> None:
        self._server, self._clock = server, SystemClock()
        self.epochs: list[EpochSummary] = []
        self.ends: list[float] = []
        self.used: list[Snapshot] = []
        self.network: list[tuple[int, int]] = []

    def note(self, epoch: EpochSummary) -> None:
        """Take down an epoch that had rows."""
        if not epoch.rows:
            return
        self.epochs.append(epoch)
        self.ends.append(self._clock.monotonic())
        pids = () if self._server is None else (self._server.redis.pid,)
        self.used.append(snapshot(pids))
        self.network.append((0, 0) if self._server is None else self._server.network())

    def figures(self, warm_rows: int) -> dict[str, Any]:
        """Return the rate and the use of the machine after the rows that warm up."""
        reached = np.cumsum([epoch.rows for epoch in self.epochs])
        warm = int(np.searchsorted(reached, warm_rows))
        rows = sum(epoch.rows for epoch in self.epochs[warm + 1 :])
        if not rows:
            raise InternalError("all epochs of a measurement were needed to warm up")
        seconds = self.ends[-1] - self.ends[warm]
        used = self.used[-1].since(self.used[warm])
        sent = [after - before for after, before in zip(*self._between(warm), strict=True)]
        log = sum(epoch.changelog_bytes for epoch in self.epochs[warm + 1 :])
        return {
            "rows_per_s": round(rows / seconds),
            "rows": rows,
            "seconds": round(seconds, 3),
            "epochs": len(self.epochs) - warm - 1,
            "cpu_cores": {part: round(u.cpu_s / seconds, 3) for part, u in used.items()},
            "worker_us_a_row": round(used["workers"].cpu_s / rows * 1e6, 3),
            "disk_written_bytes_a_row": round(_written(used) / rows, 1),
            "disk_written_mb_per_s": round(_written(used) / seconds / 1e6, 2),
            "changelog_bytes_a_row": round(log / rows, 1),
            "network_bytes_a_row": round(sum(sent) / rows, 1),
            "network_mb_per_s": round(sum(sent) / seconds / 1e6, 3),
        }

    def _between(self, warm: int) -> tuple[tuple[int, int], tuple[int, int]]:
        return self.network[-1], self.network[warm]


def _written(used: dict[str, Used]) -> int:
    return used["workers"].written_bytes + used["driver"].written_bytes


def measure(case: Case, workload: Workload, size: Size, home: Path) -> dict[str, Any]:
    """Measure one case, and check what it counted where that is kept anywhere.

    Args:
        case: which store.
        workload: which job.
        size: how much.
        home: a new folder, removed at the end.

    Returns:
        What ``EpochRecorder.figures`` says, and ``checked``: whether the counts were added up.

    Raises:
        InternalError: the counts do not add up to the rows.
    """
    rows = size.rows(case, size.seconds)
    epoch_rows = max(1, min(size.epoch_rows, rows // EPOCHS))
    settings = settings_of(home, case, epoch_rows=epoch_rows, bounded=True)
    try:
        with server_of(case, home / "server") as server, open_bus(settings.bus_dir) as bus:
            stream = create_streams(bus, case, workload)
            filled = 0
            if workload == "readonly":
                filled = prepare(bus, stream, case, size, server)
            feed(stream, random_ids(rows, size.ids), workload)
            recorder = EpochRecorder(server)
            work = make_job(case, workload, url=url_of(server))
            result = run_job(work, settings, bus=bus, on_epoch=recorder.note)
            found = recorder.figures(max(filled, 1))
            found["checked"] = _check(case, workload, rows, (bus, settings, result, server))
            return found
    finally:
        shutil.rmtree(home, ignore_errors=True)


def prepare(bus: Bus, stream: Any, case: Case, size: Size, server: Server | None) -> int:
    """Fill the store of ReadOnly; returns how many messages that takes."""
    if server is not None:
        server.fill(size.ids)
        return 0
    return fill(bus, stream, case, size.ids)


def _check(
    case: Case,
    workload: Workload,
    rows: int,
    parts: tuple[Bus, Settings, RunResult, Server | None],
) -> bool:
    """Add up what was counted or sent; a store without changelog cannot be asked."""
    bus, settings, result, server = parts
    if workload == "readonly":
        stream = bus.stream(OUTPUT)
        total = sum(stream.ends()) - sum(stream.begins())
    elif server is not None:
        total = server.total()
    elif case.changelog:
        total = counted(make_job(case, workload), bus, settings, result.state)
    else:
        return False
    if total != rows:
        raise InternalError(f"{case.name} of {JOB}: {total} of {rows} messages are accounted for")
    return True
