"""Looks at the rules of a running job every few seconds, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.config.alerts import AlertRule
from headrace.control.alerts.course import AlertCourse
from headrace.control.alerts.places import places_of
from headrace.control.alerts.rules import RuleNow
from headrace.control.board import Board
from headrace.coordinator.commit_log import generation_times
from headrace.errors import HeadraceError
from headrace.files import Files

EVERY_S = 5.0
STOP_S = 3.0


class AlertWatch:
    """The alerts of a driver. Without rules it does nothing.

    Args:
        board: of the driver.
        bus: for the stream of alerts.
        storage: of the job.
        files: the file system.
        clock: where time comes from.
        tell: takes lines for the log; from any thread.

    Raises:
        InvalidInputError: the settings name a place that is not there.
    """

    def __init__(
        self,
        board: Board,
        bus: Bus,
        *,
        storage: Path,
        files: Files,
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        self._board, self._storage, self._clock = board, storage, clock
        self._files, self._tell = files, tell
        self._rules = board.settings.alerts.rules
        self._places = places_of(board.settings, bus, tell)
        self._course: AlertCourse | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen_rows, self._has_failed = 0, False
        board.alerts = self.now

    def start(self) -> None:
        """Begin, once the job's lock is held; the first look is at once."""
        if self._is_needed():
            self._thread = threading.Thread(target=self._run, name="headrace-alerts", daemon=True)
            self._thread.start()

    def _is_needed(self) -> bool:
        """Without rules there may still be what fired by rules that are no more."""
        return bool(self._rules) or (self._storage / "alerts.json").exists()

    def _run(self) -> None:
        self._try()
        while not self._over.wait(EVERY_S):
            self._try()
        self._try(is_last=True)

    def _try(self, *, is_last: bool = False) -> None:
        try:
            self.look(is_last=is_last)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next look comes
            if not self._has_failed:
                self._has_failed = True
                self._tell(f"alerts: rules could not be looked at: {type(error).__name__}: {error}")

    def look(self, *, is_last: bool = False) -> None:
        """Look once.

        Args:
            is_last: try what waits for a place although it is not due.
        """
        if self._course is None:
            self._course = AlertCourse(
                self._board.job,
                self._rules,
                self._places,
                storage=self._storage,
                files=self._files,
                clock=self._clock,
                tell=self._tell,
            )
        rows = self._board.output_rows
        sent, self._seen_rows = rows - self._seen_rows, rows
        has_ended = self._board.status == "ended"

        def seen(rule: AlertRule) -> int | None:
            with suppress(HeadraceError, OSError):
                return self._value(rule, sent, has_ended=has_ended)
            return None

        self._course.look(seen, is_last=is_last)

    def _value(self, rule: AlertRule, sent: int, *, has_ended: bool) -> int:
        match rule.kind:
            case "lag":
                return self._board.lag_now()
            case "no_output":
                return 1 if has_ended else sent  # nothing is missing at the end
            case "restart_loop":
                begin = self._clock.now_ms() - rule.for_ms
                return sum(at >= begin for at in generation_times(self._storage))
            case "standby_behind":
                return self._epochs_behind()

    def _epochs_behind(self) -> int:
        state, most = self._board.state, 0
        for view in self._board.stages:
            standby = view.standby
            if standby is not None:
                is_filled = standby.filled == max(standby.wanted, standby.standbys)
                most = max(most, standby.epochs if is_filled else state.epoch)
        return most

    def now(self) -> list[RuleNow]:
        """Return how the rules stand since the last look."""
        held = {} if self._course is None else dict(self._course.book.rules)
        found = []
        for rule in self._rules:
            state = held.get(rule.name)
            value = since = fired = None
            if state is not None:
                value, since, fired = state.value, state.since_ms, state.fired_ms
            found.append(RuleNow(rule.name, rule.kind, rule.text, value, since, fired))
        return found

    def stop(self) -> None:
        """Look once more, try what still waits, and end; without a start nothing happens.

        A place that does not answer in time gets it from the next driver: all is on disk.
        """
        if self._thread is not None:
            self._over.set()
            self._thread.join(STOP_S)
