"""``Context``: what a processor may do while it handles a message or a timer."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

from headrace.errors import InvalidInputError
from headrace.graph.sides import To
from headrace.state.broadcast.lookup import BroadcastStore
from headrace.state.objects import ObjectStore
from headrace.state.remote import RemoteStore
from headrace.task.timers import Timers
from headrace.task.turn import Later, Turn
from headrace.task.undo import LaterTimers, UndoStore

NO_GROUP = -1

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Context:
    """What a processor may do while it handles a message or a timer.

    One instance for each task; valid only during the call it is given to. ``store``
    entries and timers belong to the key group of the message at hand: the same store key
    used under two partition keys of different groups names two entries.
    """

    def __init__(self, turn: Turn) -> None:
        stores = turn.stores if turn.undo is None else turn.undo.stores
        self._turn, self._stores = turn, {**stores, **turn.tables}

    @property
    def task(self) -> int:
        """Number of the task."""
        return self._turn.task

    @property
    def epoch(self) -> int:
        """The epoch that is running."""
        return self._turn.epoch

    @property
    def wall_ms(self) -> int:
        """The epoch's wall clock, ms; the same when Spark runs a slot again."""
        return self._turn.wall_ms

    @property
    def watermark(self) -> int:
        """The watermark of what reaches the operator, as of the end of the last epoch, ms."""
        return self._turn.watermark

    @property
    def key(self) -> Any:
        """The partition key of the message or timer: a value, or a tuple of several."""
        turn = self._turn
        if turn.timer is not None:
            return turn.timer.key
        return turn.keys[turn.row] if len(turn.keys) else None

    @property
    def input(self) -> str | None:
        """The name of the stream that the message is of, where there are several."""
        turn = self._turn
        return turn.inputs[turn.row] if turn.timer is None and turn.inputs else None

    @property
    def time(self) -> int | None:
        """The event time of the message, ms, or the due time of the timer."""
        turn = self._turn
        if turn.timer is not None:
            return turn.timer.at
        return turn.times[turn.row] if turn.times is not None else None

    def store(self, name: str) -> ObjectStore:
        """Return a store that the operator declared.

        One of kind ``remote`` has the same ``get``, ``put``, ``delete`` and ``in``, with other
        promises: see ``headrace.state.remote.store``. A broadcast store has ``get``, ``in`` and
        ``scan``, over the whole table whatever the message's key.

        Raises:
            InvalidInputError: no such store; names those declared.
        """
        try:  # not by way of _found: asked for by every message
            return self._stores[name]  # type: ignore[return-value]
        except KeyError:
            raise self._unknown(name) from None

    def get_later(
        self, name: str, key: Any, then: Callable[[Any], object], default: Any = None
    ) -> None:
        """Ask a remote store for a value, go on, and have ``then(value)`` called with it.

        Many requests of many messages are under way at the same time. Calls come in the order
        in which they were asked for, each as if its message were at hand, so ``emit``, ``key``
        and timers are those of its message; but after ``process`` has seen later messages,
        before the epoch ends.

        Args:
            name: of a store of kind ``remote``.
            key: of the value.
            then: called with the value; may ask again.
            default: where there is no value.

        Raises:
            InvalidInputError: no such store, or one that is local.
        """
        turn, store = self._turn, self._found(name)
        if not isinstance(store, RemoteStore):
            raise InvalidInputError(f"store {name!r} is local: use get, which does not wait")
        turn.later.append(Later(store, key, then, default, turn.row, turn.group))

    def _found(self, name: str) -> ObjectStore | UndoStore | RemoteStore | BroadcastStore:
        try:
            return self._stores[name]
        except KeyError:
            raise self._unknown(name) from None

    def _unknown(self, name: str) -> InvalidInputError:
        return InvalidInputError(
            f"no store {name!r}; declared: {sorted(self._stores)}; add it to process(stores=...)"
        )

    def emit(self, message: Any, *, to: str | None = None) -> None:
        """Send a message on; its event time is that of the message or timer at hand.

        A timer whose time lies behind the watermark sends as of the watermark, so that no
        window which has closed opens again.

        Args:
            message: with the columns of ``returns=``, or of the side.
            to: a side that the operator declares with ``sides=``.

        Raises:
            FunctionResultError: no such side; names those declared.
        """
        turn = self._turn
        if to is not None:
            if to not in turn.parcels.sides:
                raise turn.parcels.unknown(to)
            message = To(to, message)
        turn.messages.append(message)
        turn.rows.append(turn.row)
        if len(turn.rows) > turn.ceiling:
            turn.count(turn.operator)

    def set_timer(self, at: int | datetime.datetime, name: str = "", *, wall: bool = False) -> None:
        """Have ``on_timer`` called once the watermark (or the wall clock) reaches ``at``.

        Args:
            at: milliseconds since the epoch, or an aware time.
            name: tells timers of one key apart.
            wall: by the wall clock instead of event time.
        """
        turn, moment, key = self._turn, _moment(at), self._key_values()
        self._timers().set(turn.group, moment, name, key, wall=wall, passed=turn.now)

    def cancel_timer(
        self, at: int | datetime.datetime, name: str = "", *, wall: bool = False
    ) -> None:
        """Take back a timer set for the same key, time and name."""
        moment, key = _moment(at), self._key_values()
        self._timers().cancel(self._turn.group, moment, name, key, wall=wall)

    def _timers(self) -> Timers | LaterTimers:
        turn = self._turn
        timers = turn.timers if turn.undo is None else turn.undo.timers
        if timers is None:
            raise InvalidInputError(
                "timers need a key: put partition_by before process, and keep its columns"
            )
        if not self._turn.has_on_timer:
            raise InvalidInputError("timers need a method on_timer(timer, context) to fire in")
        if self._turn.group == NO_GROUP:
            raise InvalidInputError("timers belong to a message: open() has none to set them for")
        return timers

    def _key_values(self) -> tuple[Any, ...]:
        key = self.key
        return key if isinstance(key, tuple) else (key,)


def _moment(at: int | datetime.datetime) -> int:
    if isinstance(at, datetime.datetime):
        if at.tzinfo is None:
            raise InvalidInputError(f"timer at {at} has no time zone; use an aware time or ms")
        return (at - _EPOCH) // datetime.timedelta(milliseconds=1)
    return int(at)
