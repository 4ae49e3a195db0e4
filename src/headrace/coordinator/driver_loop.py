"""The direct loop of a driver: epochs one after the other, without spinning.

What others ask for (``JobControl``, signals too) is looked at between two epochs, never in one.
``stop`` wins over all else; a pause holds up epochs, not requests, and not a job that has ended.
On a full disk the epoch under way is dropped, and tried again (``RetryPolicy``); what a sink
that is away is to take is committed, and handed to it before anything else is done.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import TypeVar

from headrace.bus import Bus, LogAwayError
from headrace.clock import Clock
from headrace.closeable import running_beside
from headrace.coordinator.commands import CommandQueue
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.epoch_records import EpochSummary
from headrace.coordinator.job_events import MERGING, PAUSED, RESUMED
from headrace.errors import HeadraceError, UnavailableError
from headrace.files import disk_error, is_full
from headrace.graph.sinks import ReceiverAwayError
from headrace.objects import StorageAwayError

RETRY_S = 1.0
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class RetryPolicy:
    """How a job meets a full disk, and a receiver that is away.

    Args:
        clock: for the pauses.
        stop: ends the waiting.
        limit_s: how long to wait; ``None``: until stopped.
        notify: called with a line when the waiting begins and when it is over.
    """

    clock: Clock
    stop: threading.Event
    limit_s: float | None = None
    notify: Callable[[str], None] = lambda line: None

    def retry_while_blocked(self, step: Callable[[], _Result]) -> _Result | None:
        """Return what a step returns, tried again as long as a disk is full or a sink is away.

        Returns:
            ``None`` when the job was stopped meanwhile; nothing of the step is visible.

        Raises:
            DiskFullError: there was no room for longer than the limit.
            ReceiverAwayError: the receiver did not answer for longer than the limit.
            LogAwayError, StorageAwayError: a log or the job's storage did not, likewise.
        """
        since: float | None = None
        what = ""
        while True:
            try:
                result = step()
            except (OSError, HeadraceError) as error:
                is_away = isinstance(error, ReceiverAwayError | LogAwayError | StorageAwayError)
                if not (is_away or is_full(error)):
                    raise
                now = self.clock.monotonic()
                if since is None:
                    since = now
                    limit = "" if self.limit_s is None else f", for {self.limit_s:.0f} s at most"
                    what = "an answer" if is_away else "room"
                    self.notify(f"{_reason_text(error)}; the job waits for {what}{limit}")
                if self.limit_s is not None and now - since >= self.limit_s:
                    raise
                if self.stop.is_set():
                    return None
                self.clock.sleep(RETRY_S)
                continue
            if since is not None:
                waited = self.clock.monotonic() - since
                self.notify(f"there is {what} again after {waited:.0f} s; the job continues")
            return result


def _reason_text(error: OSError | HeadraceError) -> str:
    found = disk_error(error) if isinstance(error, OSError) else error
    return found.message.partition(";")[0]


IDLE_WAIT_S = 0.5
STOP_CHECK_S = 0.1


class StopSignal(threading.Event):
    """An event that calls those who wait for other things, too, when it is set."""

    def __init__(self) -> None:
        super().__init__()
        self._wakes: list[Callable[[], None]] = []

    def set(self) -> None:
        """Set it, and wake them."""
        super().set()
        for wake in tuple(self._wakes):
            wake()

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Have ``set`` call this for a block."""
        self._wakes.append(wake)
        try:
            yield
        finally:
            self._wakes.remove(wake)


@dataclass(frozen=True)
class JobControl:
    """What others may ask of a running job, from any thread or signal handler.

    ``stop`` ends it after the epoch under way; ``finish`` makes it read its inputs to the ends
    they have at that moment, close all windows, and end; while ``paused`` is set, no
    epoch begins, nor while ``merging`` is, for somebody merges into the job. ``fenced`` says why it
    is stopped: another driver has taken over.
    """

    stop: StopSignal = field(default_factory=StopSignal)
    finish: threading.Event = field(default_factory=threading.Event)
    paused: threading.Event = field(default_factory=threading.Event)
    merging: threading.Event = field(default_factory=threading.Event)
    fenced: threading.Event = field(default_factory=threading.Event)

    @property
    def is_paused(self) -> bool:
        """Say whether no epoch may begin now."""
        return self.paused.is_set() or self.merging.is_set()


def on_stop(control: JobControl, act: Callable[[], None]) -> AbstractContextManager[None]:
    """Call a function, in a thread of its own, when a job is asked to stop within a block."""

    def watch(over: threading.Event) -> None:
        while not over.is_set():
            if control.stop.wait(STOP_CHECK_S):
                if not over.is_set():
                    act()
                return

    return running_beside("headrace-on-stop", watch)


def start_driver(coordinator: Coordinator, retry: RetryPolicy) -> bool:
    """Start a job's driver, with the retries that its epochs have.

    Args:
        coordinator: not started.
        retry: with what it meets.

    Returns:
        Whether it has started; False when it was asked to stop first.

    Raises:
        HeadraceError: as of ``start``; of a disk or a sink when the limit is over, or when it
            was asked to stop before there was a job.
    """

    def start() -> bool:
        coordinator.start()
        return True

    if retry.retry_while_blocked(start):
        return True
    if not coordinator.has_state:
        coordinator.start()  # there is nothing to show but what was waited for
    return False


def run_epochs(
    coordinator: Coordinator,
    bus: Bus,
    clock: Clock,
    control: JobControl,
    on_epoch: Callable[[EpochSummary], None],
    *,
    interval_ms: int = 0,
    tick_ms: int = 100,
    retry: RetryPolicy | None = None,
) -> None:
    """Advance a started job until it has ended or is asked to stop.

    Args:
        coordinator: started.
        bus: waited on for news.
        clock: for the interval.
        control: looked at between epochs.
        on_epoch: called after each epoch.
        interval_ms: least time from one epoch's start to the next's.
        tick_ms: how often several input streams are looked at.
        retry: with a full disk; without, that is an error at once.
    """
    retry = retry or RetryPolicy(clock, control.stop, 0)
    commands, was_paused = coordinator.commands, False
    with control.stop.waking(commands.wake):
        while True:
            commands.looked()
            stops, has_ended = control.stop.is_set(), coordinator.state.ended
            is_paused = control.is_paused and not has_ended and not stops
            if is_paused and not was_paused:
                coordinator.event_log.record(*(MERGING if control.merging.is_set() else PAUSED))
            if was_paused and not is_paused:
                coordinator.event_log.record(*RESUMED)
            was_paused = is_paused
            if stops:
                return
            if is_paused:
                retry.retry_while_blocked(coordinator.serve_requests)
                commands.wait(tick_ms / 1000)
                continue
            if control.finish.is_set() and not has_ended:
                retry.retry_while_blocked(coordinator.end_at_present)
            began = clock.monotonic()
            summary = retry.retry_while_blocked(coordinator.advance)
            if summary is not None:  # the next advance brings out what this one could not
                on_epoch(summary)
                _rest(coordinator, clock, control, retry, began + interval_ms / 1000)
            elif coordinator.state.ended:
                return
            else:
                deadline_ms = coordinator.wall_deadline()
                wait_for_news(bus, coordinator.seen_ends, deadline_ms, clock, tick_ms, commands)


def _rest(
    coordinator: Coordinator, clock: Clock, control: JobControl, retry: RetryPolicy, due: float
) -> None:
    """Wait until the next epoch may begin; what is asked for meanwhile is done at once."""
    commands = coordinator.commands
    while not control.stop.is_set() and (rest := due - clock.monotonic()) > 0:
        commands.wait(rest)
        if not commands.has_news:
            break
        commands.looked()
        if not control.stop.is_set():
            serve = partial(coordinator.serve_requests, is_paused=control.is_paused)
            retry.retry_while_blocked(serve)


def wait_for_news(
    bus: Bus,
    ends: Mapping[str, Sequence[int]],
    deadline_ms: int | None,
    clock: Clock,
    tick_ms: int,
    commands: CommandQueue,
) -> None:
    """Return when an input has grown, a timer is due, a command has come, or after a moment."""
    left_s = math.inf if deadline_ms is None else max(0.0, (deadline_ms - clock.now_ms()) / 1000)
    for name, known in ends.items():
        stream = bus.stream(name)
        is_alone = len(ends) == 1 or stream.is_polled
        timeout = min(left_s, IDLE_WAIT_S if is_alone else tick_ms / 1000)
        with commands.waking(stream.wake):
            stream.wait_unless(known, timeout, lambda: commands.has_news)
        return
    clock.sleep(min(left_s, tick_ms / 1000))


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signals(control: JobControl) -> Iterator[None]:
    """Let the first signal set ``control.stop``; the next one ends the process at once.

    Python runs handlers between two steps of the main thread. That may have entered a call
    into Spark just before, and wait there for minutes; or hold the very lock that a handler
    needs. So the handlers do nothing, and a thread reads which signals came.

    In another thread than the main one signals are left to the program.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    before = {number: signal.signal(number, _ignore) for number in STOP_SIGNALS}
    listener = threading.Thread(
        target=_listen, args=(reader, control), name="headrace-signals", daemon=True
    )
    listener.start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(descriptor)
        writer.close()
        listener.join()
        reader.close()


def _ignore(number: int, frame: FrameType | None) -> None:
    """Replace the default action; the listener does the rest."""


def _listen(reader: socket.socket, control: JobControl) -> None:
    while came := reader.recv(64):
        for number in came:
            if number not in STOP_SIGNALS:
                continue
            if control.stop.is_set():
                os._exit(128 + number)
            control.stop.set()


class DroppedError(UnavailableError):
    """The epoch under way was dropped because the job was asked to stop."""

    code = "HR204"
    move = "run the job again; nothing is lost"
