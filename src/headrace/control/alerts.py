"""Alerts of a running job: rules evaluated every few seconds, events delivered.

``AlertEngine`` is rules, events and deliveries from look to look, without thread or waiting;
``AlertWatch`` looks every few seconds. Receivers are the log, a webhook, a stream: each takes an
event, or says why not.
"""

from __future__ import annotations

import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa

from headrace.bus import Bus, Producer, Stream, StreamSpec
from headrace.clock import Clock
from headrace.config import AlertRule, Settings
from headrace.control.alert_rules import (
    CLOCK_RULE,
    AlertEvent,
    AlertState,
    AlertTransition,
    Delivery,
    RuleState,
    RuleStatus,
    alert_text,
    evaluate_rule,
    load_alerts,
    save_alerts,
)
from headrace.control.live_job import LiveJob
from headrace.coordinator.commit_log import generation_times
from headrace.errors import CorruptDataError, HeadraceError, InvalidInputError, UnavailableError
from headrace.files import Files
from headrace.redaction import remember_setting

TIMEOUT_S = 5.0
_RETRIED_STATUS = (408, 425, 429)
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_URL = re.compile(r"https?://[!-~]+")

COLUMNS = pa.schema(
    [
        ("id", pa.string()),
        ("job", pa.string()),
        ("rule", pa.string()),
        ("kind", pa.string()),
        ("state", pa.string()),
        ("text", pa.string()),
        ("value", pa.int64()),
        ("above", pa.int64()),
        ("since", pa.timestamp("ms", "UTC")),
        ("at", pa.timestamp("ms", "UTC")),
    ]
)


class RefusedError(InvalidInputError):
    """A place that will not take it, however often it is tried."""

    code = "HR115"
    move = "fix the destination in [alerts], then test it: headrace alerts test"


class AlertReceiver(Protocol):
    """Somewhere that alerts go to."""

    @property
    def shown(self) -> str:
        """What it is, without what is secret."""
        ...

    def deliver(self, event: AlertEvent, lineage: str) -> None:
        """Hand an event over.

        Raises:
            UnavailableError: not now; try again.
            RefusedError: never.
        """
        ...


class LogReceiver:
    """The notices of ``headrace run``.

    Args:
        notify: takes a line.
    """

    shown = "log"

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify

    def deliver(self, event: AlertEvent, lineage: str) -> None:
        """Print it in a line."""
        del lineage
        word = "alert" if event.state == "firing" else f"alert ({event.state})"
        self._notify(f"{word} {event.rule}: {event.text}")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the event would be left behind, and a GET be sent in its place."""

    def redirect_request(self, *args: object) -> None:
        """Let the answer be an error."""
        del args


_OPENER = urllib.request.build_opener(_NoRedirect)


class WebhookReceiver:
    """A server that takes each event as JSON, by POST.

    Args:
        url: of it; ``${NAME}`` is taken from the environment.
        environ: the environment; the process's own when left out.

    Raises:
        InvalidInputError: a variable that is not set, or with them it is no URL.
    """

    def __init__(self, url: str, environ: Mapping[str, str] | None = None) -> None:
        known = os.environ if environ is None else environ
        missing = sorted({name for name in _VARIABLE.findall(url) if name not in known})
        if missing:
            raise InvalidInputError(
                f"alerts.webhook names ${{{missing[0]}}}, which is not in the environment; set it "
                "where headrace runs"
            )
        self._url = _VARIABLE.sub(lambda found: known[found[1]], url)
        remember_setting("alerts.webhook", self._url)
        self.shown = f"webhook of {_host(self._url)}"

    def deliver(self, event: AlertEvent, lineage: str) -> None:
        """Post it; any answer of 2xx is good."""
        del lineage
        headers = {"Content-Type": "application/json", "User-Agent": "headrace"}
        request = urllib.request.Request(self._url, msgspec.json.encode(event), headers)
        try:
            with _OPENER.open(request, timeout=TIMEOUT_S) as answer:
                answer.read(1)
        except urllib.error.HTTPError as error:
            error.close()
            said = f"the {self.shown} answers {error.code} {error.reason}"
            if 300 <= error.code < 500 and error.code not in _RETRIED_STATUS:
                raise RefusedError(said) from error
            raise UnavailableError(said) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise UnavailableError(f"the {self.shown} does not answer: {reason}") from error
        except HTTPException as error:
            said = f"the {self.shown} does not answer as a web server does"
            raise UnavailableError(f"{said}: {type(error).__name__}") from error


def _host(url: str) -> str:
    """Return the host of a URL; one that is wrong is not shown, for it may be secret."""
    try:
        found = urlsplit(url)
        if _URL.fullmatch(url) and found.hostname and found.port != 0:
            return found.hostname
    except ValueError:  # of its port, or of an address in brackets
        pass
    raise InvalidInputError(
        "alerts.webhook is no URL once its variables are in place; http:// or https://, a host, "
        "and no spaces or other letters than ASCII are expected"
    )


class StreamReceiver:
    """A stream of the bus: a row for each event, once, whatever is tried again.

    Args:
        name: of the stream, made at its first event.
        bus: where it is.

    Raises:
        InvalidInputError: no stream can have that name.
    """

    def __init__(self, name: str, bus: Bus) -> None:
        self._spec, self._bus = StreamSpec(name, 1, COLUMNS, "at"), bus
        self.shown = f"stream {name}"

    def deliver(self, event: AlertEvent, lineage: str) -> None:
        """Append it, under its number."""
        values = msgspec.to_builtins(event)
        values |= {"since": event.since_ms, "at": event.at_ms}
        columns = [pa.array([values[field.name]], field.type) for field in COLUMNS]
        row = pa.RecordBatch.from_arrays(columns, schema=COLUMNS)
        try:
            producer = Producer(f"alerts/{event.job}", lineage)
            self._stream().append(0, row, producer=producer, sequence=event.number)
        except InvalidInputError as error:
            raise RefusedError(f"{self.shown}: {error.message}") from error
        except (HeadraceError, OSError) as error:
            raise UnavailableError(f"{self.shown} accepts nothing: {error}") from error

    def _stream(self) -> Stream:
        name = self._spec.name
        if name not in {*self._bus.names(), *self._bus.aliases()}:
            self._bus.create(self._spec, exist_ok=True)
        return self._bus.stream(name)


def alert_receivers(
    settings: Settings, bus: Bus, notify: Callable[[str], None]
) -> dict[str, AlertReceiver]:
    """Return the places that the settings name, by what rules call them.

    Raises:
        InvalidInputError: a rule names one that is not set, or the webhook cannot be made.
    """
    found: dict[str, AlertReceiver] = {"log": LogReceiver(notify)}
    if settings.alerts.webhook is not None:
        found["webhook"] = WebhookReceiver(settings.alerts.webhook)
    if settings.alerts.stream is not None:
        found["stream"] = StreamReceiver(settings.alerts.stream, bus)
    for rule in settings.alerts.rules:
        for name in rule.to or ():
            if name not in found:
                raise InvalidInputError(
                    f"rule {rule.name!r} of alerts notifies the {name}, and alerts.{name} is not "
                    f"set; set it, or leave {name} out of its to"
                )
    return found


MAX_TRIES = 8
FIRST_PAUSE_MS = 1000

ReadRuleValue = Callable[[AlertRule], int | None]


class AlertEngine:
    """The alerts of one job, kept in its storage.

    One thread at a time. Nothing is raised for a place that fails: it is reported, and tried again.

    Args:
        job: its name.
        rules: that are looked at.
        places: that alerts are sent to, by name.
        storage: of the job.
        files: the file system.
        clock: time and names.
        notify: takes a line on what cannot be delivered.
    """

    def __init__(
        self,
        job: str,
        rules: Sequence[AlertRule],
        places: Mapping[str, AlertReceiver],
        *,
        storage: Path,
        files: Files,
        clock: Clock,
        notify: Callable[[str], None],
    ) -> None:
        self._job, self._rules, self._places = job, tuple(rules), places
        self._storage, self._files, self._clock, self._notify = storage, files, clock, notify
        try:
            self.book = load_alerts(storage, clock)
        except CorruptDataError as error:
            notify(f"alerts: {error.message}")
            self.book = AlertState(clock.new_id())
        self._reported: set[str] = set()

    def look(self, seen: ReadRuleValue, *, is_last: bool = False) -> None:
        """Look at every rule, note what has turned, then deliver what is due.

        Args:
            seen: returns what a rule watches; ``None`` where it is not known.
            is_last: deliver what is not due yet, too.
        """
        now, before = self._clock.now_ms(), self._kept()
        self._retire(now)
        for rule in self._rules:
            held = self.book.rules.get(rule.name, RuleState(rule.kind, rule.text))
            state, turn = evaluate_rule(rule, held, seen(rule), now)
            self.book.rules[rule.name] = state
            if turn is not None:
                shown = held if turn == "over" else state
                self._turned(rule.name, shown, turn, state.value, now, rule)
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
        """Release rules that are no more, or say something else now; what fired is over."""
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
        turn: AlertTransition,
        value: int | None,
        now: int,
        rule: AlertRule | None = None,
    ) -> None:
        """Note that a rule has turned; one that is gone goes to all."""
        number = max(self.book.number + 1, now)
        since = now if state.since_ms is None else state.since_ms
        text = alert_text(self._job, state, turn, value, now - since)
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
            if tries >= MAX_TRIES:
                self._give_up(delivery, f"{error.message}, after {tries} tries")
                return None
            if delivery.place not in self._reported:
                self._reported.add(delivery.place)
                self._notify(f"alerts: {error.message}; it is tried again")
            pause = FIRST_PAUSE_MS << delivery.tries
            return Delivery(delivery.event, delivery.place, tries, now + pause, error.message)
        self._reported.discard(delivery.place)
        return None

    def _give_up(self, delivery: Delivery, why: str) -> None:
        event = delivery.event
        self._notify(f"alerts: {event.rule} ({event.state}) is not delivered: {why}")

    def _save(self) -> None:
        try:
            save_alerts(self._storage, self.book, self._files)
        except OSError as error:
            if "" not in self._reported:
                self._reported.add("")
                self._notify(f"alerts: {self._storage} cannot be written: {error.strerror}")


EVERY_S = 5.0
STOP_S = 3.0
"""How long the end of a driver waits for the last look."""


class AlertWatch:
    """The alerts of a driver: by the rules of the settings, and of a clock that is not believed.

    Args:
        live: the job of the driver.
        bus: for the stream of alerts.
        storage: of the job.
        files: the file system.
        notify: takes lines for the log; from any thread.

    Raises:
        InvalidInputError: the settings name a place that is not there.
    """

    def __init__(
        self,
        live: LiveJob,
        bus: Bus,
        *,
        storage: Path,
        files: Files,
        notify: Callable[[str], None],
    ) -> None:
        self._live, self._storage = live, storage
        self._files, self._notify = files, notify
        self._rules = live.settings.alerts.rules
        if not any(rule.kind == CLOCK_RULE.kind for rule in self._rules):
            self._rules = (*self._rules, CLOCK_RULE)
        self._places = alert_receivers(live.settings, bus, notify)
        self._engine: AlertEngine | None = None
        self._seen_rows, self._has_failed = 0, False
        live.alerts = self.now

    def run(self, over: threading.Event) -> None:
        """Look, at first at once; when it is over, look once more, and try what still waits.

        A place that does not answer in time gets it from the next driver: all is on disk.
        """
        self._try()
        while not over.wait(EVERY_S):
            self._try()
        self._try(is_last=True)

    def _is_needed(self) -> bool:
        """Without rules there may still be what fired by rules that are no more."""
        is_known = self._engine is not None or Files(sync=False).exists(
            self._storage / "alerts.json"
        )
        return bool(self._live.settings.alerts.rules) or is_known or self._clock_jump() != 0

    def _clock_jump(self) -> int:
        doubt = self._live.clock_doubt
        return 0 if doubt is None else doubt.off_ms

    def _try(self, *, is_last: bool = False) -> None:
        try:
            self.look(is_last=is_last)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next look comes
            if not self._has_failed:
                self._has_failed = True
                self._notify(
                    f"alerts: rules could not be looked at: {type(error).__name__}: {error}"
                )

    def look(self, *, is_last: bool = False) -> None:
        """Look once.

        Args:
            is_last: try what waits for a place although it is not due.
        """
        if not self._is_needed():
            return
        if self._engine is None:
            self._engine = AlertEngine(
                self._live.job,
                self._rules,
                self._places,
                storage=self._storage,
                files=self._files,
                clock=self._live.clock,
                notify=self._notify,
            )
        rows = self._live.output_rows
        sent, self._seen_rows = rows - self._seen_rows, rows
        has_ended = self._live.phase == "ended"

        def seen(rule: AlertRule) -> int | None:
            with suppress(HeadraceError, OSError):
                return self._value(rule, sent, has_ended=has_ended)
            return None

        self._engine.look(seen, is_last=is_last)

    def _value(self, rule: AlertRule, sent: int, *, has_ended: bool) -> int:
        match rule.kind:
            case "lag":
                return self._live.current_lag()
            case "no_output":
                return 1 if has_ended else sent  # nothing is missing at the end
            case "restart_loop":
                begin = self._live.clock.now_ms() - rule.for_ms
                return sum(at >= begin for at in generation_times(self._storage))
            case "clock_jump":
                return self._clock_jump()
            case "standby_behind":
                return self._epochs_behind()

    def _epochs_behind(self) -> int:
        state, most = self._live.state, 0
        for stage in self._live.stages:
            standby = stage.copies
            is_filled = standby.filled == max(standby.wanted, standby.standbys)
            most = max(most, standby.epochs if is_filled else state.epoch)
        return most

    def now(self) -> list[RuleStatus]:
        """Return how the rules stand since the last look."""
        held = {} if self._engine is None else dict(self._engine.book.rules)
        found = []
        for rule in self._rules:
            state = held.get(rule.name, RuleState())
            if rule is not CLOCK_RULE or state.is_firing:
                found.append(replace(state.status(rule.name), kind=rule.kind, text=rule.text))
        return found
