"""What becomes of alerts from look to look: rules, events, deliveries. No thread, no waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from headrace.clock import Clock
from headrace.config.alerts import AlertRule
from headrace.control.alerts.book import AlertEvent, Book, Delivery, load_book, save_book
from headrace.control.alerts.places import Place, RefusedError
from headrace.control.alerts.rules import RuleState, Turn, event_text, stepped
from headrace.errors import CorruptDataError, UnavailableError
from headrace.files import Files

MOST_TRIES = 8
FIRST_PAUSE_MS = 1000

Seen = Callable[[AlertRule], int | None]


class AlertCourse:
    """The alerts of one job, kept in its storage.

    One thread at a time. Nothing is raised for a place that fails: it is told, and tried again.

    Args:
        job: its name.
        rules: that are looked at.
        places: that can be told, by name.
        storage: of the job.
        files: the file system.
        clock: time and names.
        tell: takes a line on what cannot be delivered.
    """

    def __init__(
        self,
        job: str,
        rules: Sequence[AlertRule],
        places: Mapping[str, Place],
        *,
        storage: Path,
        files: Files,
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        self._job, self._rules, self._places = job, tuple(rules), places
        self._storage, self._files, self._clock, self._tell = storage, files, clock, tell
        try:
            self.book = load_book(storage, clock)
        except CorruptDataError as error:
            tell(f"alerts: {error.message}")
            self.book = Book(clock.new_id())
        self._told: set[str] = set()

    def look(self, seen: Seen, *, is_last: bool = False) -> None:
        """Look at every rule, note what has turned, then deliver what is due.

        Args:
            seen: returns what a rule watches; ``None`` where it is not known.
            is_last: deliver what is not due yet, too.
        """
        now, before = self._clock.now_ms(), self._kept()
        self._retire(now)
        for rule in self._rules:
            held = self.book.rules.get(rule.name, RuleState(rule.kind, rule.text))
            state, turn = stepped(rule, held, seen(rule), now)
            self.book.rules[rule.name] = state
            if turn is not None:
                told = held if turn == "over" else state
                self._turned(rule.name, told, turn, state.value, now, rule)
        if self._kept() != before:
            self._save()
        if is_last:
            waiting = [msgspec.structs.replace(one, next_ms=0) for one in self.book.waiting]
            self.book.waiting = waiting
        self.deliver(now)

    def _kept(self) -> object:
        """What a driver that takes over has to know; values come by themselves."""
        marks = {
            name: (state.text, state.since_ms, state.fired_ms)
            for name, state in self.book.rules.items()
        }
        return marks, self.book.number, len(self.book.waiting)

    def _retire(self, now: int) -> None:
        """Let go of rules that are no more, or say something else now; what fired is over."""
        texts = {rule.name: rule.text for rule in self._rules}
        for name, state in list(self.book.rules.items()):
            if texts.get(name) == state.text:
                continue
            del self.book.rules[name]
            if state.is_firing:
                self._turned(name, state, "over", None, now)

    def _turned(
        self,
        name: str,
        state: RuleState,
        turn: Turn,
        value: int | None,
        now: int,
        rule: AlertRule | None = None,
    ) -> None:
        """Note that a rule has turned; one that is gone is told to all."""
        number = max(self.book.number + 1, now)
        since = now if state.since_ms is None else state.since_ms
        text = event_text(self._job, state, turn, value, now - since)
        event = AlertEvent(
            f"{self.book.lineage}-{number}",
            number,
            self._job,
            name,
            state.kind,
            turn,
            text,
            value,
            None if rule is None else rule.above,
            since,
            now,
        )
        chosen: Iterable[str] = (rule and rule.to) or self._places
        for lost in self.book.add(event, tuple(chosen)):
            self._give_up(lost, "more alerts wait than are kept")

    def deliver(self, now: int) -> None:
        """Try what is due, in order at each place; one that fails holds up the others of it."""
        blocked: set[str] = set()
        left: list[Delivery] = []
        done = False
        for delivery in self.book.waiting:
            if delivery.place in blocked or delivery.next_ms > now:
                blocked.add(delivery.place)
                left.append(delivery)
                continue
            again = self._tried(delivery, now)
            done = True
            if again is not None:
                blocked.add(delivery.place)
                left.append(again)
        if done:
            self.book.waiting = left
            self._save()

    def _tried(self, delivery: Delivery, now: int) -> Delivery | None:
        """Try one delivery; return it where it is to be tried again."""
        place = self._places.get(delivery.place)
        if place is None:
            self._give_up(delivery, f"alerts.{delivery.place} is not set any more")
            return None
        try:
            place.deliver(delivery.event, self.book.lineage)
        except RefusedError as error:
            self._give_up(delivery, error.message)
            return None
        except UnavailableError as error:
            tries = delivery.tries + 1
            if tries >= MOST_TRIES:
                self._give_up(delivery, f"{error.message}, after {tries} tries")
                return None
            if delivery.place not in self._told:
                self._told.add(delivery.place)
                self._tell(f"alerts: {error.message}; it is tried again")
            pause = FIRST_PAUSE_MS << delivery.tries
            return Delivery(delivery.event, delivery.place, tries, now + pause, error.message)
        self._told.discard(delivery.place)
        return None

    def _give_up(self, delivery: Delivery, why: str) -> None:
        event = delivery.event
        self._tell(f"alerts: {event.rule} ({event.state}) is not delivered: {why}")

    def _save(self) -> None:
        try:
            save_book(self._storage, self.book, self._files, self._clock)
        except OSError as error:
            if "" not in self._told:
                self._told.add("")
                self._tell(f"alerts: {self._storage} cannot be written: {error.strerror}")
