"""Processors with contracts that several suites run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import headrace as hr

Row = dict[str, Any]


class Positive(hr.StatelessProcessor):
    def process(self, event: Any) -> Iterator[Row]:
        if event.n > 0:
            yield {"user": event.user, "n": event.n}


class Numbered:
    """Counts the messages of each user: the n-th of a user is another row than any other."""

    def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("n")
        number = store.get(message.user, 0) + 1
        store.put(message.user, number)
        context.emit(self.row(message, number))

    def row(self, message: Any, number: int) -> Row:
        return {"user": message.user, "number": number}


class NumberedAt(Numbered):
    """The same, with the event time."""

    def row(self, message: Any, number: int) -> Row:
        return super().row(message, number) | {"at": message.at}


class Best(hr.StatefulProcessor[list[int]]):
    """The three highest of a user; forgotten at a row of 100."""

    def begin(self) -> list[int]:
        return []

    def process(self, event: Any, state: list[int]) -> tuple[list[Row], list[int] | None]:
        if event.n == 100:
            return [{"user": event.user, "best": state}], None
        return [], sorted([*state, event.n], reverse=True)[:3]


class Words(hr.MonoidProcessor[tuple[str, int], list[str]]):
    """Texts joined in order by user and parity: no other grouping gives the same."""

    def process(self, event: Any) -> Iterator[tuple[tuple[str, int], list[str]]]:
        yield (event.user, event.n % 2), [str(event.n)]
        yield ("everybody", event.n % 2), ["x"]

    def identity(self) -> list[str]:
        return []

    def combine(self, first: list[str], second: list[str]) -> list[str]:
        first.extend(second)
        return first

    def result(self, total: list[str]) -> str:
        return "".join(total)
