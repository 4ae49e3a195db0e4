"""What a slot is asked and what it answers: plain data that travels as JSON files.

An order names everything by path, range and digest; a report names every file that the
attempt made. Nothing in either is code.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.durations import MAX_EVENT_TIME_MS, MIN_EVENT_TIME_MS

NO_WATERMARK = -(1 << 62)
END_WATERMARK = 1 << 62


def emit_time(watermark: int) -> int:
    """Return the event time of what is sent at a watermark; 1970 where none is known."""
    if watermark <= NO_WATERMARK // 2:
        return 0
    return min(max(watermark, MIN_EVENT_TIME_MS), MAX_EVENT_TIME_MS - 1)


REPORTED_KEYS = 16
"""So many of the heaviest keys a task reports."""


class InputRange(msgspec.Struct, frozen=True, array_like=True):
    """Offsets of one partition that a source task reads, ``start`` to before ``stop``.

    ``max_time`` is the highest event time seen below ``start``, ms; ``NO_WATERMARK``: none.
    ``floor`` is a watermark that none of its records is before; ``watermark`` and ``delays`` are
    those of ``Reached``. ``behind`` is how many rows there are from ``stop`` on.
    """

    operator: str
    partition: int
    start: int
    stop: int
    max_time: int = NO_WATERMARK
    floor: int = NO_WATERMARK
    watermark: int = NO_WATERMARK
    delays: tuple[int, ...] = ()
    behind: int = 0


class StateTarget(msgspec.Struct, frozen=True, array_like=True):
    """The committed state that a task's stores must hold before it runs.

    ``epoch`` is the last one that changed the task, ``attempt`` the slot attempt whose
    changes were committed then; epoch -1: nothing was ever committed. ``shape`` is another
    number whenever the files that hold the state were replaced by others: a list of them that
    was made under another shape is old. ``bytes`` is what they hold of the task.
    """

    epoch: int = -1
    attempt: str = ""
    shape: int = 0
    bytes: int = 0


class SegmentRef(msgspec.Struct, frozen=True, array_like=True):
    """One task's part of a segment, a merged segment or a snapshot, as manifests name it.

    The changes of epochs ``first_epoch`` to ``epoch`` are in it; ``attempt`` is the one whose
    changes of ``epoch`` were committed, so that (``epoch``, ``attempt``) is where a store
    stands after it. ``bytes`` and ``rows`` are of this task, ``size`` is that of the file.
    Only its key groups ``groups`` count (first, and after last) where they are given: a file
    from before a rescale may hold more that is out of date.
    """

    path: str
    size: int
    epoch: int
    attempt: str
    checksum: int | None = None
    bytes: int = 0
    rows: int = 0
    first_epoch: int = -1
    groups: tuple[int, int] | None = None


class MergeOrder(msgspec.Struct, frozen=True, array_like=True):
    """Which files of a task are to be merged, and under which name the one that stands for them.

    ``sources`` are adjacent, oldest first; ``epoch`` and ``attempt`` are where a store stands
    after them. With ``snapshot`` they begin with the oldest, and what is deleted, or had
    expired at ``now_ms`` or at the stage's ``watermark``, goes. One that finds the file ``path``
    takes it; else it is made beside the epochs, or with ``at_once`` before the epoch ends.
    """

    sources: tuple[SegmentRef, ...]
    epoch: int
    attempt: str
    snapshot: bool
    now_ms: int
    watermark: int = NO_WATERMARK
    path: str = ""
    at_once: bool = False


class TaskOrder(msgspec.Struct, frozen=True):
    """One task's part of an epoch; ``merge`` is what its files would gain by.

    ``bound`` is the watermark of what a task receives beside internal streams; of each partition
    of these that it reads there is a range, empty where there is no news. ``passed`` is the
    watermark that these alone had brought the task to, ahead of others of its stage.
    ``watermark_hold_ms`` is that behind its asynchronous calls, where messages waited for these;
    ``None``: as the stage's. ``swept_ms`` is the wall clock up to which its stores were swept of
    what has expired.
    """

    stage: str
    task: int
    groups: tuple[int, int] = (0, 0)
    ranges: list[InputRange] = []
    state: StateTarget = StateTarget()
    merge: MergeOrder | None = None
    bound: int = END_WATERMARK
    passed: int = NO_WATERMARK
    watermark_hold_ms: int | None = None
    swept_ms: int = -1


class StandbyOrder(msgspec.Struct, frozen=True, array_like=True):
    """A task whose stores a slot keeps a copy of, and the committed state for it to follow to."""

    stage: str
    task: int
    groups: tuple[int, int]
    state: StateTarget


class StandbyReport(msgspec.Struct, frozen=True, array_like=True):
    """The committed state that a standby holds, as in ``StateTarget``; what is in its way.

    ``read_bytes`` and ``worked_ms`` are what following has cost since the last report that says so.
    """

    stage: str
    task: int
    epoch: int = -1
    attempt: str = ""
    problem: str = ""
    read_bytes: int = 0
    worked_ms: int = 0


class SinkPart(msgspec.Struct, frozen=True, array_like=True):
    """What one slot made for a sink: a file; ``checksum`` is the xxh3 of its bytes."""

    operator: str
    path: str
    size: int
    rows: int
    checksum: int


class ShareOrder(msgspec.Struct, frozen=True, array_like=True):
    """A file of a committed epoch that a slot passes on to its sink: the ``share``-th of those."""

    share: int
    part: SinkPart


class SlotOrder(msgspec.Struct, frozen=True):
    """All that one slot does in one level of one epoch.

    ``exchange`` lists for each ``partition_by`` operator the files to read, in the order
    (source stage, task). ``watermarks`` holds each stage's watermark at the end of the epoch,
    ``watermarks_before`` that at the end of the last one; ``ended`` says that all inputs have
    ended. ``task_counts`` says how many tasks share the key groups of each keyed stage, whatever
    the plan says. ``tables`` holds the offsets up to which each broadcast store is read.
    ``range_bytes`` bounds what is read of each range. ``host`` is the identity of the
    state directory that the tasks' stores are on; empty: any. ``origin`` is the lineage that the
    job began with: by it and the generation local directories are owned. ``standbys`` are all that
    the slot keeps of the level's stages. With ``leaves`` the slot does nothing but release these
    tasks and their standbys; with ``renew``, of everything, and its process ends. With ``shares``,
    of an epoch that is committed, it does nothing but pass these on. ``token`` is what gives access
    to exchange files of the epoch on other hosts.
    """

    job: str
    lineage: str
    generation: int
    epoch: int
    level: int
    slot: int
    time_ms: int
    plan: str
    host: str = ""
    origin: str = ""
    ended: bool = False
    watermarks: dict[str, int] = {}
    watermarks_before: dict[str, int] = {}
    exchange: dict[str, list[str]] = {}
    tables: dict[str, list[int]] = {}
    task_counts: dict[str, int] = {}
    tasks: list[TaskOrder] = []
    standbys: list[StandbyOrder] = []
    read_ms: int | None = None
    range_bytes: int | None = None
    leaves: list[tuple[str, int]] = []
    renew: bool = False
    shares: list[ShareOrder] = []
    token: str = ""


class Reached(msgspec.Struct, frozen=True, array_like=True):
    """Where a source task really stopped in one partition, and the highest time it has seen.

    Where the lateness follows the delays: the partition's watermark, and their counts.
    Of an internal stream that is the highest mark; ``ended`` says that nothing follows.
    """

    operator: str
    partition: int
    next_offset: int
    max_time: int
    watermark: int = NO_WATERMARK
    delays: tuple[int, ...] = ()
    ended: bool = False


class OutputPart(msgspec.Struct, frozen=True, array_like=True):
    """Frames for one partition of an output stream: a byte range of an output file."""

    stream: str
    partition: int
    path: str
    begin: int
    end: int
    rows: int


ON_HOST = "//"
"""How the path of an exchange file begins that is not in the job's storage."""


class ExchangeFile(msgspec.Struct, frozen=True, array_like=True):
    """One source task's rows for one ``partition_by``, with the rows for each target task.

    ``path`` is below the job's storage, or an ``ExchangePlace`` on the host that made it.
    """

    operator: str
    task: int
    path: str
    size: int
    rows: list[int]


class FileRef(msgspec.Struct, frozen=True, array_like=True):
    """A durable file below the job's storage, with the epoch and attempt that made it.

    ``checksum`` is that of a segment's or snapshot's trailer, which stands for every byte.
    """

    path: str
    size: int
    epoch: int
    attempt: str = ""
    checksum: int | None = None


class Merged(msgspec.Struct, frozen=True, array_like=True):
    """A file that stands for several of a task, made as a ``MergeOrder`` asked.

    ``sources`` are the paths of the files it stands for, oldest first, all adjacent. With
    ``snapshot`` these are the snapshots and the oldest segments, and deletions are gone.
    """

    ref: SegmentRef
    sources: tuple[str, ...]
    snapshot: bool = False


class MergedTask(msgspec.Struct, frozen=True, array_like=True):
    """A merge that is done, and of which task, which need not have run since it was ordered."""

    stage: str
    task: int
    merged: Merged


class HotKey(msgspec.Struct, frozen=True, array_like=True):
    """One key, encoded, and about how many rows it had."""

    key: bytes
    rows: float


class HotKeys(msgspec.Struct, frozen=True, array_like=True):
    """The heaviest keys that a task sends through a ``partition_by``, heaviest first.

    ``rows`` is what all keys had, lately: what is older than a minute counts half, and so on.
    That of a key may be too low by ``slack``, and is off by the draw.
    """

    operator: str
    columns: tuple[str, ...]
    rows: float
    slack: float
    keys: list[HotKey]


class TaskProgress(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where a task is after an epoch: what it reports is committed as it is, and kept.

    ``state_bytes`` are about those of its live entries; ``expires`` says that some live for a time
    only. ``event_deadline`` is the watermark at which the task has something to emit, and
    ``wall_deadline`` the wall clock; ``None``: nothing waits. ``waiting`` messages wait for
    asynchronous calls, which held what follows them at the watermark ``held``. ``swept_ms`` is the
    wall clock up to which expired entries were looked for.
    """

    state_bytes: int = 0
    expires: bool = False
    event_deadline: int | None = None
    wall_deadline: int | None = None
    watermark_hold_ms: int | None = msgspec.field(default=None, name="held")
    waiting: int = 0
    swept_ms: int = -1


class TaskReport(TaskProgress, frozen=True):
    """What one task did: offsets reached, changes, outputs, counts; and where it is now.

    ``operators`` has what each operator counted. ``merge_problem`` is why the last merge failed.
    ``stores`` are the bytes of each store, ``hot_keys`` is there now and then.
    """

    stage: str
    task: int
    reached: list[Reached] = []
    changed: bool = False
    segment_bytes: int = 0
    segment_rows: int = 0
    merge_problem: str = ""
    outputs: list[OutputPart] = []
    counts: dict[str, int] = {}
    operators: dict[str, dict[str, int]] = {}
    overlay_bytes: int = 0
    stores: dict[str, int] = {}
    hot_keys: list[HotKeys] = []


class SlotReport(msgspec.Struct, frozen=True):
    """What one attempt of a slot did, or why it could not.

    ``error`` holds a user's or Headrace's error as (kind, message, fields, trace). ``metrics`` are
    sums by name, for what shows them where the slot ran.
    """

    slot: int
    attempt: str
    host: str
    process: int
    tasks: list[TaskReport] = []
    exchange: list[ExchangeFile] = []
    segment: FileRef | None = None
    output_files: list[FileRef] = []
    sinks: list[SinkPart] = []
    merges: list[MergedTask] = []
    misplaced: bool = False
    standbys: list[StandbyReport] = []
    error: SlotFailure | None = None
    timings_ms: dict[str, float] = {}
    metrics: dict[str, int] = {}


class SlotFailure(msgspec.Struct, frozen=True):
    """An error in a slot, as data: the class name of a Headrace error, or of the user's."""

    kind: str
    message: str
    fields: dict[str, str | int] = {}
    trace: str = ""
    operator: str = ""


_REPORT = msgspec.json.Decoder(SlotReport)
_ORDER = msgspec.json.Decoder(SlotOrder)
_ORDERS = msgspec.json.Decoder(dict[int, msgspec.Raw])


def encode(value: SlotOrder | SlotReport) -> bytes:
    """Return an order or a report as JSON."""
    return msgspec.json.encode(value)


def decode_report(data: bytes) -> SlotReport:
    """Read a report."""
    return _REPORT.decode(data)


def encode_orders(orders: Sequence[SlotOrder]) -> bytes:
    """Return the orders of a level as one file, from which each slot reads its own."""
    return msgspec.json.encode({order.slot: order for order in orders})


def decode_order_of(data: bytes, slot: int) -> SlotOrder:
    """Read the order of a slot out of those of a level."""
    return _ORDER.decode(_ORDERS.decode(data)[slot])
