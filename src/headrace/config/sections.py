"""Groups of settings with rules of their own.

Durability, start positions, alerts, traces, bus, warehouse and outputs. ``settings`` joins them
into the tree.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from headrace.config.fields import (
    Section,
    UnfitError,
    read_named,
    read_tables,
    setting,
    split_named,
)
from headrace.durations import duration_ms, duration_text, moment_ms
from headrace.errors import InvalidInputError
from headrace.objects import Address
from headrace.remote import local_path

MIB = 1 << 20
_FILE = "file:"


def absolute(path: object) -> object:
    """Return a folder of a setting from the root on; what is no path as it is."""
    return Path(path).expanduser().absolute() if isinstance(path, str | Path) else path


def spark_text(value: object) -> object:
    """Return what Spark takes for its settings and options: text, numbers, true and false."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def spark_texts(table: object) -> object:
    """Return a table of these; what is none as it is."""
    if not isinstance(table, Mapping):
        return table
    return {name: spark_text(value) for name, value in table.items()}


def milliseconds(what: str, least: int) -> Callable[[object], object]:
    """Return what reads a duration, such as ``10m``, as milliseconds; what is no text stays."""

    def read(value: object) -> object:
        return duration_ms(value, what, least=least) if isinstance(value, str) else value

    return read


EARLIEST, LATEST = "earliest", "latest"
StartPosition = str | int


def read_start(value: object, what: str = "start") -> StartPosition:
    """Return ``earliest``, ``latest``, or milliseconds since 1970, UTC.

    Args:
        value: one of the words, a datetime, or its text such as ``2013-01-31T05:15``; without
            a zone it is UTC.
        what: what it is for, for the error.

    Raises:
        InvalidInputError: none of these.
    """
    if value in (EARLIEST, LATEST):
        return str(value)
    at = value
    if isinstance(value, str):
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            at = None
    if not isinstance(at, datetime):
        raise InvalidInputError(
            f"{what} is {value!r}; expected earliest, latest, or a time such as 2013-01-31T05:15"
        )
    return moment_ms(at)


_BACKUP = re.compile(r"backup\(\s*(\d+)\s*(ms|s|m|h)\s*\)")
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}

EPOCH_PROMISE = (
    "exactly once: state and outputs of a committed epoch survive the loss of any process or host, "
    "because epochs commit to job_dir"
)
BACKUP_PROMISE = (
    "exactly once while the disk of the driver's host lives, because epochs commit to it; if it is "
    "lost, state goes back to the last copy, made every {every} while its place answers "
    "(storage.address, or job_dir), "
    "the input is read again from there, and later outputs appear again: at least once"
)


@dataclass(frozen=True)
class Durability:
    """When state is safe, and from what.

    ``interval_ms`` is that of the copies of ``backup(interval)``; ``None``: every epoch is
    committed to job_dir itself.
    """

    interval_ms: int | None = None

    @classmethod
    def parse(cls, text: str) -> Durability:
        """Read ``epoch`` or ``backup(30s)``.

        Raises:
            ValueError: anything else, or an interval of zero.
        """
        if text.strip() == "epoch":
            return cls()
        found = _BACKUP.fullmatch(text.strip())
        if found is None or int(found[1]) == 0:
            raise ValueError("epoch, or backup(interval) such as backup(30s), is expected")
        return cls(int(found[1]) * _UNITS[found[2]])

    @property
    def is_backup(self) -> bool:
        """Say whether epochs commit to the host's own disk."""
        return self.interval_ms is not None

    @property
    def promise(self) -> str:
        """Return what is promised, in a sentence."""
        return BACKUP_PROMISE.format(every=self._every) if self.is_backup else EPOCH_PROMISE

    @property
    def _every(self) -> str:
        interval = self.interval_ms or 0
        unit = next(u for u in ("h", "m", "s", "ms") if interval % _UNITS[u] == 0)
        return f"{interval // _UNITS[unit]}{unit}"

    def __str__(self) -> str:
        """Return it as the setting has it."""
        return f"backup({self._every})" if self.is_backup else "epoch"


Kind = Literal["lag", "no_output", "restart_loop", "standby_behind", "clock_jump"]
Place = Literal["log", "webhook", "stream"]

_COUNTED = {"lag": "rows", "restart_loop": "starts", "standby_behind": "epochs"}
_LASTING = ("no_output", "restart_loop")


@dataclass(frozen=True, kw_only=True)
class AlertRule(Section):
    """One rule: what is watched, from where on it is too much, for how long, and who gets it.

    ``above`` counts rows of lag, starts of drivers, or epochs that the last standby is behind. A
    rule fires once that was so ``for`` as long as it says; of ``restart_loop`` that is the time in
    which starts are counted. Without ``to`` it notifies the log, and all that ``alerts`` names.
    """

    name: str = setting(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    kind: Kind = setting()
    above: int | None = setting(None, least=0)
    for_ms: int = setting(0, alias="for", least=0, read=milliseconds("for", 0))
    to: tuple[Place, ...] | None = setting(None)

    def check(self) -> None:
        """Refuse a rule that lacks what its kind needs."""
        if self.kind in _COUNTED and self.above is None:
            raise ValueError(f"kind {self.kind} needs above, a number of {_COUNTED[self.kind]}")
        if self.kind not in _COUNTED and self.above is not None:
            raise ValueError(f"kind {self.kind} has no above; leave it out")
        if self.kind in _LASTING and not self.for_ms:
            raise ValueError(f'kind {self.kind} needs for, a duration such as "10m"')
        if self.to == ():
            raise ValueError("to is empty; name log, webhook or stream, or leave it out")

    @property
    def text(self) -> str:
        """What it watches, in words."""
        lasting = f" for {duration_text(self.for_ms)}" if self.for_ms else ""
        match self.kind:
            case "lag":
                return f"lag above {self.above:,} rows{lasting}"
            case "no_output":
                return f"no output{lasting}"
            case "restart_loop":
                return f"more than {self.above:,} starts within {duration_text(self.for_ms)}"
            case "clock_jump":
                return f"the clock of the driver's host is not believed{lasting}"
            case "standby_behind":
                return f"a standby more than {self.above:,} epochs behind{lasting}"


@dataclass(frozen=True, kw_only=True)
class ObserveSettings(Section):
    """What is looked at beside the results."""

    hot_keys: bool = setting(
        True, description="sample rows that go through `partition_by` to find its heaviest keys"
    )


@dataclass(frozen=True, kw_only=True)
class AlertSettings(Section):
    """What is wrong with a job, and who gets the alert."""

    rules: tuple[AlertRule, ...] = setting(
        (),
        "tables `[[alerts.rules]]`, or the same in JSON: when to alert",
        read=read_tables(AlertRule, "alerts.rules", "rule", lambda one: one.name),
    )
    webhook: str | None = setting(
        None,
        pattern=r"^https?://\S+$",
        description="URL that alerts are posted to as JSON; ${NAME} is taken from the environment",
    )
    stream: str | None = setting(
        None, min_length=1, description="stream that alerts are appended to, created if needed"
    )


@dataclass(frozen=True, kw_only=True)
class TracingSettings(Section):
    """OpenTelemetry traces of epochs."""

    endpoint: str | None = setting(
        None,
        pattern=r"^https?://\S+$",
        description="URL that traces of epochs are sent to by OTLP over HTTP, such as "
        "http://localhost:4318; none: no traces",
    )
    sample: float = setting(1.0, least=0, most=1, description="share of epochs that are traced")


def storage_address(value: object) -> object:
    """Return the address of an object storage in one form; nothing stays nothing."""
    if not isinstance(value, str) or not value:
        return value
    try:
        return str(Address.read(value))
    except InvalidInputError as error:
        raise UnfitError(error.message) from error


def place_address(value: object) -> object:
    """Return an address as of ``storage_address``, or ``file:`` with the path of a folder."""
    if not isinstance(value, str) or not value.startswith(_FILE):
        return storage_address(value)
    path = Path(value.removeprefix(_FILE).removeprefix("//"))
    if not path.is_absolute():
        raise UnfitError(f"{value!r} is no folder; expected file:///PATH, from the root on")
    return f"{_FILE}//{os.path.normpath(path)}"


def place_of(address: str, state_dir: Path) -> Path:
    """Return the folder of an address as of ``place_address``, or what stands for it here."""
    if address.startswith(_FILE):
        return Path(address.removeprefix(f"{_FILE}//"))
    return local_path(Address.read(address), state_dir)


@dataclass(frozen=True, kw_only=True)
class BusSettings(Section):
    """Where streams are, and how they are written."""

    address: str = setting(
        "",
        read=place_address,
        description="`s3://BUCKET/PREFIX`, `gs://`, `az://` or `hdfs://` likewise, or "
        "`file:///PATH`, which all hosts reach, for all streams of the home; empty: the folder "
        "bus, below home",
    )
    fsync: Literal["always", "interval", "never"] = setting(
        "always",
        description="when an append survives a power failure; always: at its return; "
        "interval: within the interval; never: when the system writes it. The "
        "death of a process loses nothing",
    )
    fsync_interval_ms: int = setting(200, least=1, description="the interval of fsync = interval")
    segment_bytes: int = setting(
        64 * MIB, least=4096, description="size at which a new file begins"
    )
    adopt_bytes: int = setting(
        4 * MIB,
        least=0,
        description="output segments of this size or more are adopted without a copy",
    )
    compact_bytes: int = setting(
        64 * MIB,
        least=4096,
        description="least new bytes in a partition of a compacted stream before it is "
        "compacted automatically; there must also be as many as compacted ones",
    )
    batch_bytes: int = setting(64 * MIB, least=1024, description="largest batch of an append")
    record_bytes: int = setting(8 * MIB, least=64, description="largest record of an append")
    seal_after_s: float = setting(
        10.0,
        above=0,
        description="wait after which a frozen process that has the lock of a partition is "
        "kept out of it; it appends again when it wakes up",
    )
    offload_address: str = setting(
        "",
        read=storage_address,
        description="`s3://BUCKET/PREFIX`, or `gs://`, `az://` or `hdfs://` likewise, that older "
        "segments of streams in files are moved to, of streams with `local_retain_ms` or "
        "`local_retain_bytes`; empty: nowhere",
    )


@dataclass(frozen=True, kw_only=True)
class WarehouseSettings(Section):
    """Tables that jobs write by day."""

    dir: Path | None = setting(
        None,
        read=absolute,
        description="folder of all tables, which the drivers' hosts can reach; none: "
        "warehouse, below home",
    )
    address: str = setting(
        "",
        read=place_address,
        description="`s3://BUCKET/PREFIX`, `gs://`, `az://` or `hdfs://` likewise, or "
        "`file:///PATH`, for all tables; empty: the folder",
    )
    file_bytes: int = setting(
        128 * MIB,
        least=1024,
        description="target size of a file of a day; files below half of it are merged",
    )
    merge_files: int = setting(
        32, least=2, description="number of small files of an incomplete day that are merged"
    )
    keep_s: float = setting(
        3600.0,
        least=0,
        description="how long merged or removed files are kept for readers that have already "
        "started",
    )


@dataclass(frozen=True, kw_only=True)
class SuperviseSettings(Section):
    """How `headrace run --supervise` starts a driver again that has died."""

    first_wait_s: float = setting(
        1.0,
        least=0.0,
        description="wait before the first restart; each later one waits twice as long",
    )
    max_wait_s: float = setting(60.0, least=0.0, description="longest wait before a restart")
    reset_after_s: float = setting(
        300.0,
        least=0.0,
        description="after a run of this length, waits begin with `supervise.first_wait_s` again",
    )
    max_restarts: int = setting(
        0, least=0, description="restarts in a row after which the command gives up; 0: never"
    )


OUTPUTS = "outputs"
OUTPUT_FIELDS = ("address",)


@dataclass(frozen=True, kw_only=True)
class OutputSettings(Section):
    """Where an output goes, instead of to the stream or the log that the code names.

    Args:
        address: of a log, such as ``kafka://host:9092/topic``; or ``file:NAME``, a stream of the
            bus.
    """

    address: str = setting("")

    def check(self) -> None:
        """Refuse what is no address."""
        if "://" not in self.address and not self.address.startswith(_FILE):
            raise ValueError(
                "address is no address; expected one such as kafka://host:9092/topic, or file:NAME"
            )


def split_output_key(key: str) -> tuple[str, str] | None:
    """Return output and field that a key of settings names; ``None``: it names none."""
    return split_named(OUTPUTS, key)


def read_outputs(given: Mapping[str, Mapping[str, Any]]) -> dict[str, OutputSettings]:
    """Return what is said of each output.

    Raises:
        InvalidInputError: something that cannot be; names the output.
    """
    return read_named(OutputSettings, OUTPUTS, given)
