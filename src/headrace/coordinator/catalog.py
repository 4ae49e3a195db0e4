"""What a job's stores hold, as data beside its manifests: read by commands, without its code.

A driver writes the description of its plan once its graph was found to fit the state, under
its generation; what counts for an epoch is the newest of the generations up to the epoch's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import pyarrow as pa

from headrace.errors import CorruptDataError
from headrace.faults import fault
from headrace.files import Files
from headrace.graph.aggregates import Aggregate
from headrace.graph.operator_base import TableBinding
from headrace.graph.operators import (
    Operator,
    Process,
    RunningAggregate,
    StoreSpec,
    WindowAggregate,
)
from headrace.graph.windows import GlobalWindow, Hopping, Session, Sliding, Tumbling
from headrace.plan.stages import (
    UNKEYED,
    JobPlan,
    Stage,
)
from headrace.records.schema import TableLayout, schema_to_text
from headrace.runtime.context import REMOTE
from headrace.runtime.ktable_joins import without_hidden
from headrace.runtime.node_factory import layouts_of
from headrace.runtime.stage_task import store_specs
from headrace.runtime.standbys import standby_specs
from headrace.runtime.windows.layouts import Clusters, clusters_of, kept_aggregates, steps_of
from headrace.state.value_types import JSON, describe

FOLDER = "catalog"
KEPT = 20
T = TypeVar("T")
FORMAT = 1

Form = Literal[
    "values",
    "timers",
    "totals",
    "windows",
    "periodic",
    "ids",
    "panes",
    "slices",
    "whole",
    "rows",
    "latest",
]
"""``panes``: of windows that overlap; ``slices``: of sessions; ``whole``: one window a key.

``rows``: any number for a key, in their own columns; ``latest``: one for a key, in them."""


class AggregateEntry(msgspec.Struct, frozen=True):
    """One aggregate of a store: how its result is made of its partial columns.

    ``kind`` and ``arguments`` name one of Headrace's own; ``source`` is the schema of the
    columns that it reads, ``partials`` that of its partial columns with their prefix.
    """

    name: str
    kind: str
    arguments: dict[str, Any]
    source: str
    partials: str


class StoreEntry(msgspec.Struct, frozen=True):
    """One store: where it is, what its keys and values are.

    ``keys`` is the schema of the ``partition_by`` before it, ``value`` describes the declared
    type where ``form`` is ``values``; ``width_ms`` is the length of a bucket. A store that is
    remote or not logged is not ``in_files``. Of ``ids`` the first columns of ``keys`` are those
    of the ``partition_by``, ``shared`` so many, and they may live ``by_event`` time. Of ``rows``
    ``columns`` is the schema of those beside the key. ``waits``, the fields of
    ``runtime.windows.layouts.Clusters``, is of windows that keep what was sent apart from what
    waits.
    """

    name: str
    stage: str
    operator: str
    kind: str
    form: Form
    keys: str
    value: dict[str, Any] = msgspec.field(default_factory=lambda: dict(JSON))
    aggregates: tuple[AggregateEntry, ...] = ()
    width_ms: int = 0
    ttl_ms: int | None = None
    in_files: bool = True
    shared: int = 0
    by_event: bool = False
    columns: str = ""
    waits: tuple[int, ...] = ()


class SinkEntry(msgspec.Struct, frozen=True):
    """One sink: the operator that sends to it, where rows go, and what readers can rely on."""

    operator: str
    identity: str
    promise: str


class TimeEntry(msgspec.Struct, frozen=True):
    """An input whose event time operators need, and what its watermarks wait for."""

    operator: str
    stream: str
    partitions: int
    lateness_ms: int = 0
    idle_ms: int | None = None
    is_clock: bool = False


class OperatorEntry(msgspec.Struct, frozen=True):
    """One operator: what it is in a few words, and those before it."""

    name: str
    kind: str
    text: str
    stage: str
    inputs: tuple[str, ...] = ()


class StageEntry(msgspec.Struct, frozen=True):
    """One stage: the stages that send to it, and how far behind theirs its watermark stays, ms."""

    name: str
    senders: tuple[tuple[str, int], ...] = ()
    times: tuple[TimeEntry, ...] = ()


class TableEntry(msgspec.Struct, frozen=True):
    """A broadcast store: the stream that fills it, or a file, by the user's name and by ours."""

    name: str
    stream: str = ""
    file: str = ""
    path: str = ""
    digest: str = ""


class Catalog(msgspec.Struct, frozen=True):
    """The stores of a job, by stage and operator; its streams and sinks.

    ``inputs`` names the stream of each input operator, ``lateness_ms`` what it waits for;
    ``feeds`` are those of them whose stream is internal, ``sends`` internal streams it sends to.
    ``sent`` names the stream of each output. ``remotes`` are its remote stores, each with its
    stage; ``tables`` its broadcast stores. ``standbys`` says how many each task of a stage is to
    have.
    """

    format: int
    job: str
    stores: tuple[StoreEntry, ...]
    inputs: dict[str, str] = {}
    lateness_ms: dict[str, int] = {}
    outputs: tuple[str, ...] = ()
    sinks: tuple[SinkEntry, ...] = ()
    stages: tuple[StageEntry, ...] = ()
    operators: tuple[OperatorEntry, ...] = ()
    feeds: tuple[str, ...] = ()
    sends: tuple[str, ...] = ()
    remotes: tuple[tuple[str, str], ...] = ()
    sent: dict[str, str] = {}
    tables: tuple[TableEntry, ...] = ()
    standbys: dict[str, int] = {}

    def own(self, found: Mapping[str, T]) -> dict[str, T]:
        """Return what is known of the job's own inputs, without those that other parts send.

        Args:
            found: by the name of the input.
        """
        return {name: one for name, one in found.items() if name not in self.feeds}


_DECODER = msgspec.json.Decoder(Catalog)


def describe_plan(plan: JobPlan, standby_copies: int = 0) -> Catalog:
    """Return the stores, the streams and the sinks of a plan, and what standbys there are to be."""
    stores = [entry for stage in plan.stages if stage.keyed for entry in _stores(stage)]
    inputs = plan.reads
    sent = {output.operator: output.stream for stage in plan.stages for output in stage.outputs}
    return Catalog(
        FORMAT,
        plan.job,
        tuple(stores),
        {binding.operator: binding.stream for binding in inputs},
        {binding.operator: binding.lateness_ms for binding in inputs},
        tuple(sorted(set(sent.values()))),
        tuple(SinkEntry(b.operator, b.sink.identity, b.sink.promise) for b in plan.sinks),
        tuple(_stage(plan, stage) for stage in plan.stages),
        tuple(_operators(plan)),
        feeds=tuple(feed.operator for feed in plan.feeds),
        sends=tuple(e.stream for stage in plan.stages for e in stage.sends if e.stream),
        sent=sent,
        remotes=tuple(
            (stage.name, spec.name)
            for stage in plan.stages
            for spec in stage.stores
            if spec.kind == REMOTE
        ),
        tables=tuple(_table(plan, table) for table in plan.tables),
        standbys={
            stage.name: standby_copies
            for stage in plan.stages
            if standby_copies and stage.keyed and standby_specs(store_specs(stage))
        },
    )


def _table(plan: JobPlan, table: TableBinding) -> TableEntry:
    specs = (spec for operator in plan.graph.operators for spec in operator.broadcast_stores)
    file = next((spec.file for spec in specs if spec.name == table.name), None)
    return TableEntry(table.name, table.stream or "", file or "", table.file, table.digest)


def _stage(plan: JobPlan, stage: Stage) -> StageEntry:
    names = {other.index: other.name for other in plan.stages}
    return StageEntry(
        stage.name,
        tuple((names[e.source_stage], e.delay_ms) for e in stage.clocked),
        tuple(
            TimeEntry(b.operator, b.stream, b.partitions, b.lateness_ms, b.idle_ms, b.is_clock)
            for b in stage.reads
            if b.is_timed or (stage.keyed and stage.timed)
        ),
    )


def _operators(plan: JobPlan) -> Iterator[OperatorEntry]:
    """Yield the operators of a plan in the order of the graph."""
    stage_of = {o.name: stage.name for stage in plan.stages for o in stage.operators}
    stage_of |= {e.operator: stage.name for stage in plan.stages for e in stage.receives}
    stage_of |= {e.operator: s.name for s in plan.stages for e in s.sends if e.stream}
    for operator in plan.graph.operators:
        if operator.name in stage_of:
            kind, stage = type(operator).__name__, stage_of[operator.name]
            text = operator.describe()[0]
            inputs = tuple(name for name in operator.inputs if name in stage_of)
            yield OperatorEntry(operator.name, kind, text, stage, inputs)


def _stores(stage: Stage) -> list[StoreEntry]:
    entries = []
    for operator in stage.operators:
        keys = _keys(stage, operator) if operator.inputs else ""
        if isinstance(operator, RunningAggregate | WindowAggregate):
            kept, source = kept_aggregates(operator, stage.schemas[operator.inputs[0]])
            form, width = _form(operator)
            entries.append(
                StoreEntry(
                    operator.store.name,
                    stage.name,
                    operator.name,
                    operator.store.kind,
                    form,
                    keys,
                    aggregates=tuple(_aggregate(n, a, source) for n, a in kept),
                    width_ms=width,
                    waits=_waits(operator),
                    ttl_ms=operator.store.ttl_ms,
                )
            )
        elif isinstance(operator, Process):
            local = _local_stores(operator)
            entries += [_values(spec, stage, operator, keys) for spec in local]
            kind = local[0].kind if local else "rocksdb"
            name = operator.timer_store
            entries.append(StoreEntry(name, stage.name, operator.name, kind, "timers", keys))
        else:
            layouts = layouts_of(stage, operator)
            entries += [
                _rows(stage, operator, spec, layouts[spec.name]) for spec in operator.state_stores
            ]
    return entries


def value_stores(plan: JobPlan) -> list[StoreEntry]:
    """Return those stores of a plan that hold values of types that users declare."""
    return [
        _values(spec, stage, operator, _keys(stage, operator))
        for stage in plan.stages
        if stage.keyed
        for operator in stage.operators
        if isinstance(operator, Process)
        for spec in _local_stores(operator)
    ]


def _local_stores(operator: Process) -> list[StoreSpec]:
    return [spec for spec in operator.stores if spec.kind != REMOTE]


def _keys(stage: Stage, operator: Operator) -> str:
    """The schema of the key in what an operator gets."""
    names, source = stage.keys_of(operator), stage.schemas[operator.inputs[0]]
    fields = [source.field(name) for name in names if name in source.names]  # unused are not sent
    return schema_to_text(pa.schema(fields if names else [(UNKEYED, pa.int64())]))


def _waits(operator: RunningAggregate | WindowAggregate) -> tuple[int, ...]:
    """How rows that wait are kept apart from those that were sent, if they are kept apart."""
    window = operator.window if isinstance(operator, WindowAggregate) else None
    if window is not None and steps_of(window) is not None:
        return dataclasses.astuple(Clusters())
    if window is None or not (window.is_triggered and window.is_timed):
        return ()
    return dataclasses.astuple(clusters_of(window))


def _form(operator: RunningAggregate | WindowAggregate) -> tuple[Form, int]:
    """What its rows are, and the length of a bucket."""
    if isinstance(operator, WindowAggregate):
        window = operator.window
        form: Form = "windows" if window.is_timed else "whole"
        match window:
            case Hopping() | Tumbling() if window.is_triggered:
                return form, window.size_ms
            case Hopping() | Sliding() | Tumbling(early_ms=int()):
                form = "panes"
            case Session() | GlobalWindow(idle_ms=int()):
                form = "slices"
            case GlobalWindow(every_ms=int()):
                form = "periodic"
        return form, window.width_ms
    return ("totals", 0) if operator.every_ms is None else ("periodic", operator.every_ms)


def _rows(stage: Stage, operator: Operator, spec: StoreSpec, layout: TableLayout) -> StoreEntry:
    """Rows, or ids, in columns of their own; without those that users do not know."""
    is_ids, layout = operator.row_form == "ids", without_hidden(layout)
    shown = [column for column in layout.values if not column.name.startswith("__")]
    return StoreEntry(
        spec.name,
        stage.name,
        operator.name,
        spec.kind,
        operator.row_form,
        schema_to_text(layout.keys),
        ttl_ms=layout.ttl_ms,
        shared=len(stage.keys_of(operator)) if is_ids else 0,
        by_event=layout.by_event,
        columns="" if is_ids else schema_to_text(pa.schema(shown)),
    )


def _values(spec: StoreSpec, stage: Stage, operator: Process, keys: str) -> StoreEntry:
    return StoreEntry(
        spec.name,
        stage.name,
        operator.name,
        spec.kind,
        "values",
        keys,
        value=describe(spec.value),
        ttl_ms=spec.ttl_ms,
        in_files=spec.changelog and spec.kind != REMOTE,
    )


def _aggregate(name: str, aggregate: Aggregate, source: pa.Schema) -> AggregateEntry:
    types = aggregate.partial_types(source)
    partials = pa.schema([(f"{name}.{part}", kind) for part, kind in types.items()])
    arguments = {
        field.name: value
        for field in dataclasses.fields(aggregate)
        if _is_plain(value := getattr(aggregate, field.name))
    }
    columns = pa.schema([source.field(column) for column in aggregate.columns()])
    return AggregateEntry(
        name,
        type(aggregate).__name__,
        arguments,
        schema_to_text(columns),
        schema_to_text(partials),
    )


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def save_catalog(
    root: Path, generation: int, catalog: Catalog, files: Files, kept: int = 0
) -> None:
    """Write a description under a generation, unless the newest one says the same.

    Args:
        root: of the job's storage.
        generation: of the driver.
        catalog: the description.
        files: the file system.
        kept: the generation of the oldest epoch that can be read; what describes it and later ones
            stays, however many there are.
    """
    data = msgspec.json.encode(catalog)
    names = files.names(root / FOLDER)
    if names and files.read(root / FOLDER / names[-1]) == data:
        return
    path = root / FOLDER / f"{generation:08d}.json"
    fault("catalog.due")
    if not files.publish(path, data):
        files.replace(path, data)  # streams of a pattern came or went
    described = [name for name in names if _generation(name) <= kept]
    for name in names[: max(0, min(len(names) - KEPT + 1, len(described) - 1))]:
        files.remove(root / FOLDER / name)


def load_catalog(root: Path, generation: int, files: Files) -> Catalog | None:
    """Return the description that holds for a generation; ``None`` when no driver wrote one.

    Raises:
        CorruptDataError: it cannot be read.
    """
    names = files.names(root / FOLDER)
    held = [name for name in names if _generation(name) <= generation]
    for name in held[-1:] or names[:1]:
        path = root / FOLDER / name
        try:
            return _DECODER.decode(files.read(path))
        except msgspec.DecodeError as error:
            raise CorruptDataError(
                f"catalog {path} cannot be read: {error}; run the job once to write it again",
                file=str(path),
            ) from error
    return None


def _generation(name: str) -> int:
    return int(name.partition(".")[0])
