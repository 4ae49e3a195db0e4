"""Processors: base classes of the user's classes, and what is wrong with a class that is given.

The contracts are those of Stylus: no state, state of a key, or states that combine (a monoid).
``AsyncProcessor`` makes calls that need not end before the next begins. ``ProcessSeveral`` is
``Graph.process`` of several streams as data. ``MonoidTotal`` is the aggregate behind ``monoid``;
``PartialSink`` is a server that its partial results are appended to.
"""

from __future__ import annotations

import inspect
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import polars as pl
import pyarrow as pa

from headrace.durations import Duration, duration_ms
from headrace.errors import InvalidInputError
from headrace.graph.aggregates import Aggregate, PartialRow
from headrace.graph.diagnostics import attempt, checked_uses
from headrace.graph.flows import bound_to_class
from headrace.graph.introspection import (
    call_mistake,
    message_class,
    name_of,
    process_mistakes,
    runs_later,
)
from headrace.graph.operator_base import Flow, Planning, declared_flow
from headrace.graph.operators import (
    CALLBACK,
    ORDERS,
    THREAD,
    CallPolicy,
    Operator,
    Process,
    StoreSpec,
    call_style,
)
from headrace.graph.row_aggregates import Monoid
from headrace.graph.sinks import Sink

State = TypeVar("State")
Key = TypeVar("Key")
Partial = TypeVar("Partial")


class StatelessProcessor(ABC):
    """Turns an event into outputs, without state between events.

    ``context`` is an ``hr.Context`` while an event is handled. ``open()`` and ``close()`` can
    acquire and release resources.
    """

    _described = "stateless process with"
    context: Any = None

    @abstractmethod
    def process(self, event: Any) -> Iterable[Any] | None:
        """Return the outputs of an event; ``None`` or an empty list for none."""


class StatefulProcessor(ABC, Generic[State]):
    """Turns an event and the state of its key into outputs and a new state.

    The state is an object in memory while an epoch runs. It is written to the local store with the
    epoch, once for each changed key. ``context`` is an ``hr.Context`` while an event is handled. A
    class can have ``on_timer(timer, state)``, which returns the same as ``process``, and
    ``open()`` and ``close()``.
    """

    _described = "state of each key by"
    context: Any = None

    @abstractmethod
    def begin(self) -> State:
        """Return the state of a new key; its annotation is the type of states."""

    @abstractmethod
    def process(self, event: Any, state: State) -> tuple[Iterable[Any] | None, State | None]:
        """Return the outputs of an event and the new state; ``None`` deletes the state."""


class MonoidProcessor(ABC, Generic[Key, Partial]):
    """Turns an event into keys with partial results, which combine in any grouping.

    ``combine`` must be associative, and combining with ``identity`` must change nothing. Events
    come in their order within a partition; if the order of partitions matters to ``combine``, it
    is that of reading. ``open()`` and ``close()`` can acquire and release resources.
    """

    @abstractmethod
    def process(self, event: Any) -> Iterable[tuple[Key, Partial]]:
        """Return keys, each with a partial result; a key of several columns is a tuple."""

    @abstractmethod
    def identity(self) -> Partial:
        """Return the result of no events; its annotation is the type of partial results."""

    @abstractmethod
    def combine(self, first: Partial, second: Partial) -> Partial:
        """Return two partial results as one; can change and return ``first``."""

    def result(self, total: Partial) -> Any:
        """Return what is emitted for a total: by default the total itself.

        Annotate its type if it is not that of partial results.
        """
        return total


class KeyedBatchProcessor(ABC):
    """Takes all rows that an epoch has of a key in one call, as PySpark's functions with state do.

    What a call sees depends on where epochs end. So it has no place in ``hr``: only
    ``headrace.spark.stateful`` gives it to ``process``. It can have ``open(context)``,
    ``on_timer(timer, context)`` and ``close()``; timers fire after the rows.
    """

    _described = "rows of each key in an epoch by"

    @abstractmethod
    def prepare(self, rows: pa.RecordBatch, context: Any) -> Any:
        """Return all rows of an epoch, those of a key together, as ``process_rows`` takes them."""

    @abstractmethod
    def process_rows(self, prepared: Any, rows: slice, context: Any) -> None:
        """Handle the rows of one key, in their order; ``context`` is as of ``hr.Context``."""


CONTRACTS = (StatelessProcessor, StatefulProcessor, MonoidProcessor)


def class_of(factory: Any) -> type | None:
    """Return the class that a factory makes instances of: itself, or of ``functools.partial``."""
    made = getattr(factory, "func", factory)
    return made if isinstance(made, type) else None


def contract_of(factory: Any) -> type | None:
    """Return the base class of ``CONTRACTS`` that a class given to ``process`` has, if any."""
    made = class_of(factory)
    return next((one for one in CONTRACTS if made is not None and issubclass(made, one)), None)


def given_mistakes(factory: Any) -> list[str]:
    """Say what a class or factory given to ``process`` lacks, one sentence each."""
    contract = contract_of(factory)
    if contract is None:
        return process_mistakes(factory)
    if contract is MonoidProcessor:
        return [f"class {name_of(class_of(factory))} is a MonoidProcessor: give it to monoid(...)"]
    return contract_mistakes(factory, contract)


def contract_mistakes(factory: Any, contract: type) -> list[str]:
    """Say what a class of a contract lacks, one sentence each."""
    made = class_of(factory)
    assert made is not None
    missing = sorted(getattr(made, "__abstractmethods__", ()))
    if missing:
        return [f"class {made.__name__} lacks {', '.join(missing)}, which its contract asks for"]
    wrong = call_mistake(factory, ())
    if wrong is not None:
        return [f"class {made.__name__} {wrong}; wrap it: functools.partial({made.__name__}, ...)"]
    arguments: dict[str, tuple[str, ...]] = {"open": (), "close": (), "process": ("event",)}
    if contract is StatefulProcessor:
        arguments |= {"process": ("event", "state"), "on_timer": ("timer", "state"), "begin": ()}
    elif contract is MonoidProcessor:
        arguments |= {"identity": (), "combine": ("first", "second"), "result": ("total",)}
    mistakes = []
    for method, takes in arguments.items():
        function = getattr(made, method, None)
        mistake = None if function is None else call_mistake(function, ("self", *takes))
        if mistake is None and method != "process" and runs_later(function):
            mistake = "is a generator, and calling it runs nothing: return what it makes"
        if mistake is not None:
            mistakes.append(f"method {made.__name__}.{method} {mistake}")
    if contract is not StatefulProcessor and hasattr(made, "on_timer"):
        mistakes.append(
            f"method {made.__name__}.on_timer is never called: a {contract.__name__} has no "
            "timers; derive the class from hr.StatefulProcessor, or from nothing"
        )
    if inspect.isgeneratorfunction(made.process) and contract is StatefulProcessor:  # type: ignore[attr-defined]
        mistakes.append(
            f"method {made.__name__}.process is a generator; return (outputs, state): a new state "
            "cannot be yielded"
        )
    return mistakes


def returned_type(factory: Any, method: str, names: Mapping[str, Any]) -> Any:
    """Return what a method's return annotation says; ``None`` where it has none.

    Args:
        factory: the class, or ``functools.partial`` of it.
        method: its name.
        names: local names at the user's line, for annotations kept as text.

    Raises:
        InvalidInputError: the annotation cannot be resolved.
    """
    made = class_of(factory)
    function = inspect.unwrap(getattr(made, method))
    raw = getattr(function, "__annotations__", {}).get("return")
    if raw is None:
        return None
    try:
        found = typing.get_type_hints(function, localns=dict(names), include_extras=True)["return"]
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise InvalidInputError(
            f"annotation {raw!r} of {name_of(function)} cannot be resolved: {error}; import it "
            "where the job runs, not for type checkers only"
        ) from error
    return None if isinstance(found, TypeVar) else found


def state_type(factory: Any, method: str, names: Mapping[str, Any]) -> Any:
    """Return the type of states, which ``begin`` or ``identity`` is annotated with.

    Raises:
        InvalidInputError: it has no annotation, or one that is not known.
    """
    found = returned_type(factory, method, names)
    if found is None:
        made = class_of(factory)
        assert made is not None
        raise InvalidInputError(
            f"method {made.__name__}.{method} does not say what it returns; annotate it, such as "
            f"def {method}(self) -> int: states are read back as that type"
        )
    return found


class PartialSink(Sink):
    """A sink of keys with partial results; what ``stream.monoid(..., state=)`` takes.

    It gets rows of the key's columns and the column ``partial``, and is a sink like any other:
    it takes each committed epoch once.
    """

    @abstractmethod
    def of(self, factory: Callable[[], MonoidProcessor[Any, Any]], state: Any) -> PartialSink:
        """Return the same sink for the partial results of a processor.

        Args:
            factory: makes it.
            state: the type of partial results, for msgspec.
        """


STATE = "state"
"""The store of a ``StatefulProcessor``, as ``context.store`` and ``stores=`` call it."""
PARTIAL = "partial"
"""The column in which partial results of a ``MonoidProcessor`` travel, as MessagePack."""


def with_state(specs: tuple[StoreSpec, ...], operator: str, kind: Any) -> tuple[StoreSpec, ...]:
    """Return stores with that of a stateful processor, of which one may be called ``STATE``."""
    given = next((spec for spec in specs if spec.name == STATE), StoreSpec(STATE))
    own = StoreSpec(
        f"{operator}.{STATE}", given.kind, kind, given.ttl_ms, given.changelog, given.remote
    )
    return (own, *(spec for spec in specs if spec.name != STATE))


@dataclass(frozen=True)
class MonoidTotal(Aggregate):
    """The totals of a ``MonoidProcessor``: combines partial results that are made already.

    Args:
        factory: makes the processor, whose ``combine`` and ``result`` are called.
        state: the type of partial results, for msgspec.
        returns: the Arrow type of what is shown.
    """

    factory: Callable[[], MonoidProcessor[Any, Any]] = field(compare=False)
    state: Any
    returns: pa.DataType
    is_per_epoch: ClassVar[bool] = True

    @cached_property
    def _monoid(self) -> Monoid:
        made, read = self.factory(), (PARTIAL,)
        zero, show = made.identity(), made.result
        return Monoid(zero, _alone, made.combine, show, self.returns, read, self.state)

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what is made again where it is needed."""
        return {name: value for name, value in vars(self).items() if name != "_monoid"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the fields of a frozen record."""
        vars(self).update(state)

    def columns(self) -> tuple[str, ...]:
        """Return the column of partial results."""
        return (PARTIAL,)

    def partial_types(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return one binary column."""
        return {"state": pa.binary()}

    def result_type(self, schema: pa.Schema) -> pa.DataType:
        """Return the declared type."""
        return self.returns

    def identity(self) -> PartialRow:
        """Return the identity, encoded."""
        return self._monoid.identity()

    def lift(self, prefix: str) -> list[pl.Expr]:
        """Return the partial results as they are."""
        return [pl.col(PARTIAL).alias(f"{prefix}state")]

    def partial(self, prefix: str) -> list[pl.Expr]:
        """Return those of a group as one."""
        return [self._monoid.folded(PARTIAL).alias(f"{prefix}state")]

    def combine(self, prefix: str) -> list[pl.Expr]:
        """Return those of a group as one."""
        return self._monoid.combine(prefix)

    def result(self, prefix: str) -> pl.Expr:
        """Return what is shown of each."""
        return self._monoid.result(prefix)

    def lift_values(self, values: tuple[Any, ...]) -> PartialRow:
        """Return one partial result as it is."""
        return values

    def combine_values(self, first: PartialRow, second: PartialRow) -> PartialRow:
        """Return two as one."""
        return self._monoid.combine_values(first, second)

    def result_value(self, partial: PartialRow) -> Any:
        """Return what is shown of one."""
        return self._monoid.result_value(partial)

    def describe(self) -> str:
        """Return the class and the types."""
        state = self.state.__qualname__ if isinstance(self.state, type) else str(self.state)
        return f"{name_of(class_of(self.factory))} ({state}) -> {self.returns}"


def _alone(partial: Any) -> Any:
    return partial


class Callback(Protocol):
    """Ends a call of ``process_async``, from any thread; only the first end counts."""

    def complete(self) -> None:
        """Report that the message is processed: the call's emits, writes and timers take effect."""
        ...

    def fail(self, error: BaseException) -> None:
        """Report a failure: nothing of the call takes effect, and ``on_error`` applies."""
        ...


class AsyncProcessor(ABC):
    """A processor with concurrent asynchronous calls; deriving from it is optional.

    ``open`` and ``close`` can be coroutines too; ``on_timer`` is a plain method.
    """

    @abstractmethod
    async def process(self, message: Any, context: Any) -> None:
        """Process a message; its emits, writes and timers take effect when it returns."""


def checked_calls(
    wrong: list[str],
    factory: Any,
    keys: tuple[str, ...] | None,
    *,
    max_concurrency: int | None,
    order: str | None,
    timeout: Duration | None,
    callback_timeout: Duration | None,
    threads: int | None,
) -> CallPolicy | None:
    """Return how calls are made, or ``None`` where each ends before the next; notes mistakes."""
    style = call_style(factory)
    given = {
        "max_concurrency": max_concurrency,
        "order": order,
        "timeout": timeout,
        "callback_timeout": callback_timeout,
    }
    if style is None and threads is None:
        wrong += [
            f"{name}= is for async def process, process_async, or process(..., threads=n)"
            for name, value in given.items()
            if value is not None
        ]
        return None
    if style is not None and threads is not None:
        wrong.append("threads= is for a plain process method; this one is asynchronous already")
    if contract_of(factory) is not None:
        wrong.append("hr.StatelessProcessor and its like are called plainly: leave threads= out")
    style = style or THREAD
    for name, value in (("max_concurrency", max_concurrency), ("threads", threads)):
        if value is not None and (type(value) is not int or value < 1):
            wrong.append(f"{name}={value!r}; expected a whole number from 1 on")
    order = order or "in"
    if order not in ORDERS:
        wrong.append(f"order={order!r}; expected one of {ORDERS}")
    elif order == "key" and keys is None:
        wrong.append('order="key" needs a key: put partition_by before process')
    if callback_timeout is not None and style != CALLBACK:
        wrong.append("callback_timeout= is for process_async; give timeout=")
    if timeout is not None and style == CALLBACK:
        wrong.append("timeout= is for async def process and threads; give callback_timeout=")
    chosen = callback_timeout if style == CALLBACK else timeout
    name = "callback_timeout" if style == CALLBACK else "timeout"
    timeout_ms: int | None = None
    if chosen is not None:
        timeout_ms = attempt(wrong, lambda: duration_ms(chosen, name), None)
    most = max_concurrency or threads
    return CallPolicy(style, most, order, timeout_ms, threads or 0)


def check_local(wrong: list[str], stores: tuple[StoreSpec, ...]) -> None:
    """Refuse remote stores, whose reads would hold up all calls of the process."""
    if any(spec.kind == "remote" for spec in stores):
        wrong.append(
            "an asynchronous process has local and broadcast stores only: ask remote ones with a "
            "client of your own, or use a plain process method and context.get_later"
        )


@dataclass(frozen=True)
class ProcessInput:
    """One of the streams: what its class knows it by, and what its messages are.

    ``uses`` and ``takes`` are as of an operator with a function. The rules of planning set
    ``keys``, the columns that it is partitioned by.
    """

    name: str
    uses: tuple[str, ...] | None = None
    takes: Any = field(default=None, compare=False)
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProcessSeveral(Process):
    """``process`` of several streams of one key: ``sources`` has as many as ``inputs``."""

    sources: tuple[ProcessInput, ...] = ()

    def infer(self, walk: Planning) -> Flow | None:
        """Return the columns that the class declares; binds it to those of its streams."""
        flows = [walk.flows[name] for name in self.inputs]
        bound = [
            self._bound(walk, upstream, source)
            for upstream, source in zip(self.inputs, self.sources, strict=True)
        ]
        keyed = [walk.need_key(self, flow, needed=True) for flow in flows]
        wrong = list(self._unlike_keys(flows)) if all(keyed) else []
        wrong += [text for flow in flows for text in self.unknown_loads(flow)]
        for table in self.tables:
            found = walk.bind_table(self, table)
            if found is not None:
                walk.check_message(self, found)
        for text in wrong:
            walk.report(self, text)
        if wrong or not all(keyed):
            return None
        sources = [source for source in bound if source is not None]
        if len(sources) < len(bound):
            return None
        walk.operators[self.name] = replace(self, sources=tuple(sources))
        returns = pa.schema([]) if self.returns is None else self.returns
        return self._after(walk, returns)

    def port_flow(
        self, walk: Planning, port: Operator, name: str, returns: pa.Schema | None
    ) -> Flow | None:
        """Return the columns of a side."""
        assert returns is not None
        return self._after(walk, returns)

    def _after(self, walk: Planning, schema: pa.Schema) -> Flow:
        flows = [walk.flows[name] for name in self.inputs]
        first = flows[0]
        untimed = tuple(dict.fromkeys(name for flow in flows for name in flow.untimed))
        made = declared_flow(self, replace(first, time=None, takes=None), schema)
        return replace(made, untimed=untimed, window_ms=None)

    def _bound(self, walk: Planning, upstream: str, source: ProcessInput) -> ProcessInput | None:
        """Bind one stream's messages to its columns."""
        flow = walk.flows[upstream]
        if not len(flow.schema):
            walk.report(self, f"operator {upstream!r} declares no columns; give it returns=")
            return None
        asking = Process(self.name, site=self.site, uses=source.uses, takes=source.takes)
        taking, wrong = bound_to_class(asking, flow.schema, flow.takes)
        for text in wrong:
            walk.report(self, f"stream {source.name!r}: {text}")
        uses: tuple[str, ...] | None = getattr(taking, "uses", None)
        read = flow.schema.names if uses is None else uses
        if wrong or not walk.can_be_message(taking, read, flow.schema):
            return None
        return replace(source, uses=uses, takes=taking.takes, keys=flow.keys)

    def _unlike_keys(self, flows: list[Flow]) -> Iterator[str]:
        first, names = flows[0], [source.name for source in self.sources]
        for name, flow in zip(names[1:], flows[1:], strict=True):
            for mine, theirs in zip(first.keys, flow.keys, strict=True):
                one, other = first.schema.field(mine).type, flow.schema.field(theirs).type
                both_whole = pa.types.is_integer(one) and pa.types.is_integer(other)
                if not both_whole and not one.equals(other):
                    yield (
                        f"key {mine!r} of {names[0]!r} is {one}, but {theirs!r} of {name!r} is "
                        f"{other}: rows with such keys never meet; cast one with map before "
                        "partition_by"
                    )

    def reads(self, upstream: str, flows: Mapping[str, Flow], wanted: set[str]) -> set[str]:
        """Return what the method for an input reads."""
        uses = self.sources[self.inputs.index(upstream)].uses
        return self.read_of(flows[upstream], uses)

    def describe(self) -> list[str]:
        """Return the streams, the class and its stores."""
        own = ", ".join(
            one.name + ("" if one.uses is None else f" ({', '.join(one.uses)})")
            for one in self.sources
        )
        return [f"process of {own} with {name_of(self.factory)}", *self.store_rows()]


def method_of(name: str) -> str:
    """Return the method that takes the messages of one stream alone."""
    return f"process_{name}"


def multi_input_mistakes(factory: Any, names: Sequence[str]) -> list[str]:
    """Say what a class lacks that is given several streams, one sentence each."""
    made = class_of(factory)
    if contract_of(factory) is not None:
        return [
            f"class {name_of(made)} has the contract of one stream; give several to a plain class "
            "with a method for each, such as process_orders(self, order, context)"
        ]
    if not isinstance(factory, type):
        return process_mistakes(factory)
    has_all = callable(getattr(factory, "process", None))
    mistakes = [text for text in process_mistakes(factory) if has_all or "no method" not in text]
    for name in names:
        method = getattr(factory, method_of(name), None)
        if not callable(method):
            if not has_all:
                mistakes.append(
                    f"class {factory.__name__} has no method {method_of(name)}(self, message, "
                    "context), nor one process(self, message, context) for all streams without"
                )
            continue
        wrong = call_mistake(method, ("self", "message", "context"))
        if wrong is not None:
            mistakes.append(f"method {factory.__name__}.{method_of(name)} {wrong}")
        if runs_later(method):
            mistakes.append(
                f"method {factory.__name__}.{method_of(name)} is a generator or async, so calling "
                "it runs nothing: make it a plain method and send with context.emit"
            )
    strays = [
        method
        for method in dir(factory)
        if method.startswith(method_of("")) and method.removeprefix(method_of("")) not in names
    ]
    if strays:
        mistakes.append(
            f"class {factory.__name__} has methods {strays} for streams that it is not given; "
            f"found {list(names)}"
        )
    return mistakes


def checked_inputs(
    wrong: list[str],
    factory: Any,
    names: Sequence[str],
    uses: Mapping[str, Sequence[str]] | None,
    local: Mapping[str, Any],
) -> tuple[ProcessInput, ...]:
    """Return what each stream's messages are.

    Args:
        wrong: takes the mistakes.
        factory: of the class.
        names: of the streams.
        uses: the columns that it reads, by stream.
        local: names at the user's line.
    """
    given: Any = {} if uses is None else uses
    if not isinstance(given, Mapping):
        wrong.append("uses= is a dict from stream to the columns of it that are read")
        given = {}
    unknown = [name for name in given if name not in names]
    if unknown:
        wrong.append(f"uses= names streams {unknown} that are not given; found {list(names)}")
    sources = []
    for name in names:
        columns = checked_uses(wrong, given.get(name))
        sources.append(ProcessInput(name, columns, _takes(wrong, factory, name, local)))
    return tuple(sources)


def _takes(wrong: list[str], factory: Any, name: str, local: Mapping[str, Any]) -> Any:
    made = class_of(factory)
    if made is None:
        return None
    own = method_of(name) if hasattr(made, method_of(name)) else "process"
    return attempt(wrong, lambda: message_class(factory, local, own), None)
