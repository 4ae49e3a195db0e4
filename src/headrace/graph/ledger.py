"""``Ledger``: what a graph under construction has collected, its mistakes included."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.graph.operators import (
    Input,
    JobGraph,
    Operator,
    Port,
    Process,
    RunningAggregate,
    SendTo,
    SendToSink,
    Site,
    Split,
    WindowAggregate,
)
from headrace.graph.semantics import Semantics
from headrace.graph.sinks import Sink
from headrace.graph.tables import BroadcastSpec

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,149}")
_ENDS = (SendTo, SendToSink, RunningAggregate, WindowAggregate, Process, Split)


@dataclass(frozen=True)
class Output:
    """A stream that ``send_to`` appends to; made by ``Graph.output``."""

    ledger: Ledger
    stream: str
    partitions: int | None
    site: Site
    semantics: Semantics | None = None

    @property
    def label(self) -> str:
        """What the names of operators that send to it end with."""
        return self.stream


@dataclass(frozen=True)
class SinkOutput:
    """A sink that ``send_to`` sends to; made by ``Graph.output_sink``."""

    ledger: Ledger
    sink: Sink
    site: Site
    semantics: Semantics | None = None

    @property
    def label(self) -> str:
        """What the names of operators that send to it end with."""
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


class Ledger:
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
            if operator.name not in read and not isinstance(operator, _ENDS):
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
