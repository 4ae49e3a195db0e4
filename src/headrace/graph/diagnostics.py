"""What a graph under construction has collected: operators, outputs, and every mistake in them.

A check never raises: it notes what is wrong and continues with a placeholder, so that
``Job.build`` reports all mistakes at once. The functions check what users give to the methods of
``Stream`` and ``Graph``.
"""

from __future__ import annotations

import datetime
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import polars as pl
import pyarrow as pa

from headrace import plugins
from headrace.config import FILE
from headrace.durations import Duration, duration_ms
from headrace.errors import InvalidInputError
from headrace.graph.aggregates import Aggregate, NamedAggregate
from headrace.graph.drawing import Drawable, before
from headrace.graph.introspection import call_mistake, name_of, runs_later, user_names
from headrace.graph.operators import (
    FAIL,
    ON_ERROR,
    Input,
    JobGraph,
    Operator,
    Port,
    Process,
    SendTo,
    Site,
    StoreSpec,
)
from headrace.graph.semantics import Semantics
from headrace.graph.shared_stores import BroadcastSpec
from headrace.graph.sinks import Sink
from headrace.graph.types import returned_schema, to_schema
from headrace.graph.windows import Tumbling, Window
from headrace.redaction import without_login

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,149}")


@dataclass(frozen=True)
class Output:
    """A stream that ``send_to`` appends to; made by ``Graph.output``."""

    diagnostics: GraphDiagnostics
    stream: str
    partitions: int | None
    site: Site
    semantics: Semantics | None = None

    @property
    def label(self) -> str:
        """The end of the names of operators that send to it."""
        return self.stream


@dataclass(frozen=True)
class SinkOutput:
    """A sink that ``send_to`` sends to; made by ``Graph.output_sink``."""

    diagnostics: GraphDiagnostics
    sink: Sink
    site: Site
    semantics: Semantics | None = None
    named: str = ""
    address: str = ""

    @property
    def label(self) -> str:
        """The end of the names of operators that send to it."""
        return self.sink.label if isinstance(self.sink, Sink) else "sink"


def _text(semantics: Semantics | None) -> str:
    return "None" if semantics is None else repr(semantics.value)


def name_mistake(name: object, what: str) -> str | None:
    """Say why a name cannot be one, or ``None``."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return None
    return (
        f"{name!r} cannot name {what}; use up to 150 letters, digits, '.', '_' or '-', beginning "
        "with a letter or digit"
    )


class GraphDiagnostics:
    """Collects operators and outputs, and every mistake in them, in the order of the calls."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.mistakes: list[str] = []
        self._operators: dict[str, Operator] = {}
        self._outputs: list[Output] = []
        self._sinks: list[SinkOutput] = []
        self._is_sent: set[int] = set()
        self._stores: dict[str, str] = {}
        self._tables: dict[str, BroadcastSpec] = {}

    def name(self, wrong: list[str], given: str | None, derived: str) -> str:
        """Return the name of a new operator; a derived one is made unique."""
        if given is None:
            number, chosen = 1, derived
            while chosen in self._operators:
                number += 1
                chosen = f"{derived}-{number}"
            if len(chosen) > 150:
                wrong.append("the derived name is longer than 150 characters; give name=")
            return chosen
        if (mistake := name_mistake(given, "an operator")) is not None:
            wrong.append(mistake)
        elif given in self._operators:
            first = self._operators[given].site
            wrong.append(f"the name {given!r} is already taken at {first}; give another")
        return str(given)

    def prefix(self, derived: str) -> str:
        """Return what names of several new operators can begin with, made unique."""
        number, chosen = 1, derived
        while any(f"{name}.".startswith(f"{chosen}.") for name in self._operators):
            number += 1
            chosen = f"{derived}-{number}"
        return chosen

    def claim_stores(self, wrong: list[str], operator: str, names: Sequence[str]) -> None:
        """Note the stores of an operator; each name may be used once in a job."""
        for name in names:
            if (mistake := name_mistake(name, "a store")) is not None:
                wrong.append(mistake)
            elif name in self._tables:
                wrong.append(f"store {name!r} has the name of a broadcast store; rename it")
            elif name in self._stores:
                wrong.append(
                    f"store {name!r} is already used by operator {self._stores[name]!r}; "
                    "give it another name"
                )
            else:
                self._stores[name] = operator

    def claim_table(self, wrong: list[str], table: BroadcastSpec) -> None:
        """Note a broadcast store, which several operators may use."""
        if (mistake := name_mistake(table.name, "a store")) is not None:
            wrong.append(mistake)
        elif table.name in self._stores:
            wrong.append(
                f"store {table.name!r} is already used by operator {self._stores[table.name]!r}; "
                "give it another name"
            )
        elif (known := self._tables.setdefault(table.name, table)) != table:
            wrong.append(
                f"broadcast store {table.name!r} is of {table.origin} by {list(table.key)} here, "
                f"but of {known.origin} by {list(known.key)} elsewhere; give them two names"
            )

    def add(self, operator: Operator, wrong: list[str]) -> None:
        """Take an operator and its mistakes."""
        for text in wrong:
            self.report(f"operator {operator.name!r}", operator.site, text)
        self._operators.setdefault(operator.name, operator)

    def before(self, name: str) -> list[Drawable]:
        """Return an operator and all that it reads from, each after the ones it reads."""
        return before(self._operators, name)

    def amend(self, name: str, **changes: Any) -> None:
        """Say more of an operator that was added."""
        self._operators[name] = replace(self._operators[name], **changes)

    def add_output(self, output: Output, wrong: list[str]) -> None:
        """Take an output and its mistakes; the same stream is given the same things."""
        stream, partitions = output.stream, output.partitions
        if (mistake := name_mistake(stream, "a stream")) is not None:
            wrong.append(mistake)
        is_number = isinstance(partitions, int) and not isinstance(partitions, bool)
        if partitions is not None and not (is_number and partitions > 0):
            wrong.append(f"partitions is {partitions!r}; expected a number above zero")
        for other in self._outputs:
            if other.stream == stream and other.partitions != partitions:
                wrong.append(
                    f"output {stream!r} was given partitions={other.partitions} at {other.site} "
                    f"and partitions={partitions} here; give the same"
                )
                break
            if other.stream == stream and other.semantics != output.semantics:
                wrong.append(
                    f"output {stream!r} was given semantics={_text(other.semantics)} at "
                    f"{other.site} and semantics={_text(output.semantics)} here; give the same"
                )
                break
        for text in wrong:
            self.report(f"output {stream!r}", output.site, text)
        self._outputs.append(output)

    def output_of(self, stream: str, site: Site) -> Output:
        """Return the output to a stream that was named before, or else a new one."""
        for known in self._outputs:
            if known.stream == stream:
                return known
        output = Output(self, stream, None, site)
        self.add_output(output, [])
        return output

    def add_sink(self, output: SinkOutput, wrong: list[str]) -> None:
        """Take a sink and its mistakes."""
        found = [f"found {output.sink!r}, expected a sink, such as hr.sinks.parquet(folder)"]
        if isinstance(output.sink, Sink):
            found = output.sink.mistakes()
        wrong += found
        for text in wrong:
            self.report("sink", output.site, text)
        self._sinks.append(output)

    def mark_sent(self, output: Output | SinkOutput) -> None:
        """Note that an output is used."""
        self._is_sent.add(id(output))

    def report(self, who: str, site: Site, text: str) -> None:
        """Take a mistake, with the operator and the user's line."""
        where = f" ({site})" if str(site) else ""
        self.mistakes.append(f"{who}{where}: {text}")

    def finish(self) -> JobGraph:
        """Check the whole and return it; mistakes are in ``mistakes``."""
        operators = tuple(self._operators.values())
        readers = [operator for operator in operators if not isinstance(operator, Port)]
        read = {before for operator in readers for before in operator.inputs}
        for operator in operators:
            if operator.name not in read and not operator.is_end:
                text = "nothing reads this stream; end it with send_to, or take it out"
                self.report(f"operator {operator.name!r}", operator.site, text)
        for output in self._outputs:
            if id(output) not in self._is_sent:
                text = "nothing is sent to it; use send_to, or take it out"
                self.report(f"output {output.stream!r}", output.site, text)
        for sink in self._sinks:
            if id(sink) not in self._is_sent and isinstance(sink.sink, Sink):
                text = "nothing is sent to it; use send_to, or take it out"
                self.report(f"sink {sink.sink.identity!r}", sink.site, text)
        filled = {table.stream: table.name for table in self._tables.values()}
        sources = {o.stream: o for o in operators if isinstance(o, Input)}
        for operator in operators:
            if not isinstance(operator, SendTo):
                continue
            if operator.stream in filled:
                text = (
                    f"stream {operator.stream!r} also fills broadcast store "
                    f"{filled[operator.stream]!r}; a job cannot feed itself: send to another stream"
                )
                self.report(f"operator {operator.name!r}", operator.site, text)
            if operator.stream in sources:
                source = sources[operator.stream]
                text = (
                    f"stream {operator.stream!r} is also an input, at {source.site}; a job cannot "
                    "feed itself: send to another stream"
                )
                self.report(f"operator {operator.name!r}", operator.site, text)
        return JobGraph(self.job, operators)


STORE_KINDS = ("rocksdb", "memory")
TABLE_KINDS = ("columnar", "rocksdb", "memory")
PROCESS_KINDS = (*STORE_KINDS, "remote")
Keys = tuple[str, ...] | None
T = TypeVar("T")


def attempt(wrong: list[str], call: Callable[[], T], otherwise: T) -> T:
    """Return what a check gives, or note its mistake and continue with a stand-in."""
    try:
        return call()
    except InvalidInputError as error:
        wrong.append(error.message)
        return otherwise


def is_function(part: object) -> bool:
    """Say whether it is a function of messages, not an expression on columns."""
    return callable(part) and not isinstance(part, pl.Expr)


def shown(value: object) -> str:
    """Return a value and its type, for a message."""
    return f"{value!r:.60} ({type(value).__name__})"


def with_on_error(wrong: list[str], operator: Operator, on_error: object) -> Operator:
    """Check what happens to rows that an operator refuses, and return it with that."""
    if on_error == FAIL:
        return operator
    if on_error not in ON_ERROR:
        wrong.append(f"on_error={on_error!r}; expected one of {ON_ERROR}")
        return operator
    if isinstance(operator, Process) and any(spec.kind == "remote" for spec in operator.stores):
        wrong.append(
            f"on_error={on_error!r} takes back what a failed call wrote, which a remote store "
            "cannot: catch the errors in process, or use a store of another kind"
        )
    return replace(operator, on_error=str(on_error))


def checked_function(
    wrong: list[str], method: str, function: Any, uses: Sequence[str] | None
) -> tuple[str, ...] | None:
    """Check a function for messages or batches; return the columns it uses."""
    if not is_function(function):
        wrong.append(f"{method} takes a function; found {shown(function)}")
    else:
        argument = "frame" if method == "map_batches" else "message"
        mistake = call_mistake(function, (argument,))
        if mistake is not None:
            wrong.append(f"function {name_of(function)} {mistake}")
        elif method != "flat_map" and runs_later(function):
            wrong.append(
                f"function {name_of(function)} is a generator, and calling it runs nothing; "
                f"{method} takes one that returns: flat_map takes generators"
            )
    return checked_uses(wrong, uses)


def checked_uses(wrong: list[str], uses: Sequence[str] | None) -> tuple[str, ...] | None:
    """Check the columns that a function says it uses."""
    if uses is None:
        return None
    columns = (uses,) if isinstance(uses, str) else tuple(uses)
    if not columns or not all(isinstance(column, str) for column in columns):
        wrong.append(f"uses= takes names of columns, at least one; found {list(columns)}")
    elif len(set(columns)) < len(columns):
        wrong.append(f"uses= names a column twice in {list(columns)}")
    return columns


def returned(
    wrong: list[str], method: str, function: Any, returns: Any, *, many: bool = False
) -> pa.Schema | None:
    """Return the columns of a function's result, given or read from its annotation."""
    if not is_function(function):
        return None
    none: pa.Schema | None = None
    if returns is not None:
        return attempt(wrong, lambda: to_schema(returns), none)
    before, names = len(wrong), user_names()
    schema = attempt(wrong, lambda: returned_schema(function, names, many=many), none)
    if schema is None and len(wrong) == before:
        wanted = "Iterable[Record]" if many else "Record"
        wrong.append(
            f"what function {name_of(function)} returns to {method} is not known; give returns=, "
            f"or annotate it with -> {wanted}, a msgspec struct, dataclass or TypedDict"
        )
    return schema


def given_aggregates(
    wrong: list[str],
    method: str,
    given: Sequence[object],
    named: Mapping[str, Any],
    options: dict[str, Any],
) -> dict[str, Any]:
    """Return aggregates by the name of their column, however they were given.

    Args:
        wrong: takes mistakes.
        method: for them.
        given: aggregates with a name, and dicts of them; also options by position, in their order.
        named: aggregates by keyword.
        options: of the method, with their values; those given by position are put in, and an
            aggregate, which was meant as a column, is taken out.
    """
    pairs: list[tuple[str, Any]] = []
    places = iter(options)
    for part in given:
        if isinstance(part, NamedAggregate):
            pairs.append((part.name, part.aggregate))
        elif isinstance(part, Mapping):
            pairs += part.items()
        elif isinstance(part, str | datetime.timedelta) and (option := next(places, None)):
            warnings.warn(
                f"{method}({part!r}) by position is for a release only: write {option}={part!r}",
                DeprecationWarning,
                stacklevel=3,
            )
            options[option] = part
        else:
            wrong.append(
                f"{method} takes aggregates with names: hr.agg.count().alias('n'), a dict, or "
                f"n=hr.agg.count(); found {shown(part)}"
            )
    for option, value in options.items():
        if isinstance(value, Aggregate):
            options[option] = "columnar" if option == "store" else None
            wrong.append(
                f"{option}= is an option of {method}; for a column of that name write "
                f".alias({option!r}) behind the aggregate"
            )
    pairs += named.items()
    if not pairs and not wrong:
        wrong.append(f"{method} has no aggregates; add one such as n=hr.agg.count()")
    found: dict[str, Any] = {}
    for name, value in pairs:
        if not isinstance(name, str) or not name:
            wrong.append(f"the name of a column is text; found {shown(name)}")
        elif name in found:
            wrong.append(f"{method} makes the column {name!r} twice; rename one")
        else:
            found[name] = value
    return found


WINDOW_OPTIONS = ("allowed_lateness", "late", "updates", "early", "early_rows", "early_idle")
"""Of ``hr.tumbling`` and the like; other libraries take some of them beside the window."""


def checked_aggregates(
    wrong: list[str], method: str, aggregates: Mapping[str, Any], keys: Keys, taken: set[str]
) -> tuple[tuple[str, Aggregate], ...]:
    """Check the aggregates of ``aggregate`` and ``window`` and return the good ones."""
    if keys is None:
        wrong.append(f"{method} keeps state for each key: put partition_by before it")
    for name, aggregate in aggregates.items():
        if isinstance(aggregate, Aggregate):
            wrong += [f"{name}: {text}" for text in aggregate.check()]
        elif method == "window" and name in WINDOW_OPTIONS:
            wrong.append(
                f"{name}= is an option of the kind of window: hr.tumbling(size, {name}=...)"
            )
        else:
            wrong.append(f"{name}= takes an aggregate of hr.agg; found {shown(aggregate)}")
        if name in (keys or ()):
            wrong.append(f"aggregate {name!r} has the name of a key column; rename it")
        elif name in taken:
            wrong.append(f"aggregate {name!r} has the name of a column of {method}; rename it")
    return tuple((n, a) for n, a in aggregates.items() if isinstance(a, Aggregate))


def checked_window(wrong: list[str], window: object) -> Window:
    """Check what says which messages belong together, and return it or a stand-in."""
    if isinstance(window, Window):
        wrong += window.mistakes
        return window
    wrong.append(f'window takes a window such as hr.tumbling("1h"); found {shown(window)}')
    return Tumbling(1)


def check_kind(
    wrong: list[str], name: str, kind: object, kinds: tuple[str, ...] = STORE_KINDS
) -> None:
    """Check the kind of a store."""
    if kind not in kinds:
        wrong.append(f"store {name!r} is of kind {kind!r}; expected one of {kinds}")


def _check_remote(wrong: list[str], spec: StoreSpec) -> None:
    """Check what is for one kind only."""
    if spec.kind == "remote":
        if spec.remote is not None:
            wrong += [f"store {spec.name!r}: {mistake}" for mistake in spec.remote.mistakes()]
        if not spec.changelog:
            wrong.append(f"store {spec.name!r} is remote and never has a changelog; leave it out")
    elif spec.remote is not None:
        wrong.append(
            f"store {spec.name!r} is of kind {spec.kind!r}, but url= and remote= are for "
            "kind='remote'"
        )


def checked_stores(
    wrong: list[str], stores: Any, keys: Keys
) -> tuple[tuple[StoreSpec, ...], tuple[BroadcastSpec, ...]]:
    """Return the keyed and the broadcast stores of ``process``."""
    tables: list[BroadcastSpec] = []
    if isinstance(stores, Mapping):
        specs = [StoreSpec(str(name), value=value) for name, value in stores.items()]
        if any(isinstance(value, StoreSpec | BroadcastSpec) for value in stores.values()):
            wrong.append(
                "stores= has hr.store or hr.broadcast as a type in a dict; give them as a list, "
                "such as stores=[hr.store('seen', int)]"
            )
    else:
        given = list(stores) if isinstance(stores, Sequence | set) else [stores]
        specs = [spec for spec in given if isinstance(spec, StoreSpec)]
        tables = [spec for spec in given if isinstance(spec, BroadcastSpec)]
        bad = [spec for spec in given if not isinstance(spec, StoreSpec | BroadcastSpec)]
        if bad:
            found = ", ".join(map(shown, bad))
            wrong.append(f"stores= takes a dict of names and types, or hr.store; found {found}")
    if keys is None and any(spec.kind != "remote" for spec in specs):
        wrong.append("process keeps state for each key: put partition_by before it")
    for spec in specs:
        check_kind(wrong, spec.name, spec.kind, PROCESS_KINDS)
        _check_remote(wrong, spec)
    return tuple(specs), tuple(tables)


def checked_ids(wrong: list[str], columns: Sequence[object], keys: Keys) -> tuple[str, ...]:
    """Return the columns of an id: the key's, then the others."""
    ids = tuple(column for column in columns if isinstance(column, str))
    if len(ids) < len(columns):
        wrong.append(f"deduplicate takes names of columns; found {list(columns)}")
    if len(set(ids)) < len(ids):
        wrong.append(f"deduplicate names a column twice in {list(ids)}")
    if not keys:
        by = ", ".join(map(repr, ids)) or "..."
        wrong.append(f"deduplicate keeps ids for each key: put partition_by({by}) before it")
        return ids
    missing = [key for key in keys if ids and key not in ids]
    if missing:
        wrong.append(
            f"deduplicate by {list(ids)} in a stream that is partitioned by {list(keys)} would not "
            f"see copies under another key: partition by columns of the id, or add {missing} to it"
        )
    return (*keys, *(column for column in ids if column not in keys))


def checked_retention(
    wrong: list[str], within: Duration | None, ttl: Duration | None
) -> tuple[int | None, int | None]:
    """Return how long ids are kept: by event time, and in their store, ms."""
    within_ms = kept_ms = None
    if within is not None:
        within_ms = attempt(wrong, lambda: duration_ms(within, "within"), None)
    if ttl is not None:
        kept_ms = attempt(wrong, lambda: duration_ms(ttl, "ttl"), None)
    if within is not None and ttl is not None:
        wrong.append("within= counts event time and ttl= the wall clock: give one of them")
    return within_ms, kept_ms if within is None else within_ms


def plain_name(stream: Any) -> Any:
    """Return the name of a stream of the bus, without the ``file:`` that may be before it."""
    is_named = isinstance(stream, str) and "://" not in stream
    return stream.removeprefix(FILE) if is_named else stream


def scheme_of(address: str) -> str:
    """Return what an address begins with."""
    return address.partition("://")[0]


def at_address(wrong: list[str], address: str, what: str) -> str:
    """Return what the log at an address is called; adds what is wrong with the address."""
    try:
        connector = plugins.load(plugins.LOGS, scheme_of(address))
    except InvalidInputError as error:
        wrong.append(f"{what} at {without_login(address)}: {error.message}")
        return "log"
    wrong += [f"{what} at {without_login(address)}: {text}" for text in connector.mistakes(address)]
    return str(connector.name(address))


def carrier_mistakes(address: str) -> list[str]:
    """Return what is wrong with the address of a log that is to carry an internal stream."""
    where = f"via {without_login(address)}"
    try:
        connector = plugins.load(plugins.LOGS, scheme_of(address))
    except InvalidInputError as error:
        return [f"{where}: {error.message}"]
    if not hasattr(connector, "carrier_mistakes"):
        return [f"{where}: such a log cannot be between two parts of a job"]
    return [f"{where}: {text}" for text in connector.carrier_mistakes(address)]


def sink_at(
    diagnostics: GraphDiagnostics,
    address: str,
    site: Site,
    semantics: Semantics | None = None,
    wrong: Sequence[str] = (),
) -> SinkOutput:
    """Return the output that writes to the log at an address, and report what is wrong."""
    found = list(wrong)
    named = at_address(found, address, "an output")
    sink: Any = None if found else plugins.load(plugins.LOGS, scheme_of(address)).sink(address)
    output = SinkOutput(diagnostics, sink, site, semantics, named, address)
    if found:
        for text in found:
            diagnostics.report(f"output {without_login(address)!r}", site, text)
    else:
        diagnostics.add_sink(output, [])
    return output
