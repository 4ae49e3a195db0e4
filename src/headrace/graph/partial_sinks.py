"""The contract of servers that partial results of a ``MonoidProcessor`` are appended to."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from headrace.graph.processors import MonoidProcessor
from headrace.graph.sinks import Sink


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
