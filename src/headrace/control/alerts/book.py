"""What is known of a job's alerts, in one file of its storage: rules, events, what waits.

The file is replaced before anybody is told, so that the next driver goes on from there.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from headrace.clock import Clock
from headrace.control.alerts.rules import RuleState
from headrace.errors import CorruptDataError
from headrace.files import Files

BOOK = "alerts.json"
KEPT_EVENTS = 100
MOST_WAITING = 200


class AlertEvent(msgspec.Struct, frozen=True):
    """A rule that fires, or is over; ``test`` is neither.

    ``id`` is of this event alone: who gets it twice knows it by that.
    """

    id: str
    number: int
    job: str
    rule: str
    kind: str
    state: str
    text: str
    value: int | None
    above: int | None
    since_ms: int
    at_ms: int


class Delivery(msgspec.Struct, frozen=True):
    """An event that a place has not got yet: how often that was tried, and when it is next."""

    event: AlertEvent
    place: str
    tries: int = 0
    next_ms: int = 0
    problem: str = ""


class Book(msgspec.Struct):
    """All of it; ``lineage`` goes with the numbers of the events."""

    lineage: str
    number: int = 0
    rules: dict[str, RuleState] = {}
    events: list[AlertEvent] = []
    waiting: list[Delivery] = []

    def add(self, event: AlertEvent, places: tuple[str, ...]) -> list[Delivery]:
        """Note an event that places are to be told of; returns what is given up for it."""
        self.number = event.number
        self.events = [*self.events, event][-KEPT_EVENTS:]
        waiting = [*self.waiting, *(Delivery(event, place) for place in places)]
        self.waiting = waiting[-MOST_WAITING:]
        return waiting[:-MOST_WAITING]


_DECODER = msgspec.json.Decoder(Book)


def load_book(storage: Path, clock: Clock) -> Book:
    """Read the alerts of a job; of one that has none yet they are empty.

    Raises:
        CorruptDataError: the file is there, and damaged.
    """
    path = storage / BOOK
    try:
        return _DECODER.decode(path.read_bytes())
    except FileNotFoundError:
        return Book(clock.new_id())
    except msgspec.DecodeError as error:
        raise CorruptDataError(
            f"{path} cannot be read: {error}; remove it, and its rules begin anew", file=str(path)
        ) from error


def save_book(storage: Path, book: Book, files: Files, clock: Clock) -> None:
    """Replace the file as a whole."""
    files.replace(storage / BOOK, msgspec.json.encode(book), clock.new_id())
