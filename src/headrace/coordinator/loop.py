"""The start of a driver, and the direct loop: epochs one after the other, without spinning."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.machines.life import Action, Begun, Done, Life, Phase, Turned, Wishes
from headrace.coordinator.patience import Patience
from headrace.coordinator.story import MERGING, PAUSED, RESUMED
from headrace.coordinator.summary import EpochSummary

IDLE_WAIT_S = 0.5


@dataclass(frozen=True)
class Control:
    """What others may ask of a running job, from any thread or signal handler.

    ``stop`` ends it after the epoch under way; ``finish`` makes it read its inputs to the ends
    they have at that moment, close all windows, and end for good; while ``paused`` is set, no
    epoch begins, nor while ``merging`` is, for somebody merges into the job. ``fenced`` says why it
    is stopped: another driver has taken over.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    finish: threading.Event = field(default_factory=threading.Event)
    paused: threading.Event = field(default_factory=threading.Event)
    merging: threading.Event = field(default_factory=threading.Event)
    fenced: threading.Event = field(default_factory=threading.Event)

    @property
    def is_paused(self) -> bool:
        """Say whether no epoch may begin now."""
        return self.paused.is_set() or self.merging.is_set()

    def wishes(self) -> Wishes:
        """Return what is asked for now."""
        return Wishes(self.stop.is_set(), self.finish.is_set(), self.is_paused)


def begin(coordinator: Coordinator, patience: Patience) -> bool:
    """Start a job's driver, as patient with a full disk or a sink that is away as its epochs.

    Args:
        coordinator: not started.
        patience: with what it meets.

    Returns:
        Whether it has started; False when it was told to stop first.

    Raises:
        HeadraceError: as of ``start``; of a disk or a sink when the limit is over, or when it
            was told to stop before there was a job.
    """

    def start() -> bool:
        coordinator.start()
        return True

    if patience.until_room(start):
        return True
    if not coordinator.has_state:
        coordinator.start()  # there is nothing to tell of but what was waited for
    return False


def drive(
    coordinator: Coordinator,
    bus: Bus,
    clock: Clock,
    control: Control,
    on_epoch: Callable[[EpochSummary], None],
    *,
    interval_ms: int = 0,
    tick_ms: int = 100,
    patience: Patience | None = None,
) -> None:
    """Advance a started job until it has ended or is told to stop.

    Args:
        coordinator: started.
        bus: waited on for news.
        clock: for the interval.
        control: looked at between epochs.
        on_epoch: called after each epoch.
        interval_ms: least time from one epoch's start to the next's.
        tick_ms: how often several input streams are looked at.
        patience: with a full disk; without, that is an error at once.
    """
    patience = patience or Patience(clock, control.stop, 0)
    life, began = Life().after(Begun(coordinator.state.ended)), clock.monotonic()
    while life.action is not Action.RETURN:
        match life.action:
            case Action.LOOK:
                before, life = life.phase, life.after(control.wishes())
                if life.phase is Phase.PAUSED is not before:
                    coordinator.story.tell(*(MERGING if control.merging.is_set() else PAUSED))
                if before is Phase.PAUSED is not life.phase:
                    coordinator.story.tell(*RESUMED)
                continue
            case Action.SERVE:
                patience.until_room(coordinator.serve_requests)
                control.stop.wait(tick_ms / 1000)
            case Action.END_INPUTS:
                patience.until_room(coordinator.end_at_present)
            case Action.TURN:
                began = clock.monotonic()
                summary = patience.until_room(coordinator.advance)
                if summary is not None:
                    on_epoch(summary)
                life = life.after(Turned(summary is not None, coordinator.state.ended))
                continue
            case Action.REST:
                rest = interval_ms / 1000 - (clock.monotonic() - began)
                if rest > 0:
                    control.stop.wait(rest)
            case Action.AWAIT:
                due = coordinator.wall_deadline()
                wait_for_news(bus, coordinator.ends(), due, clock, tick_ms)
        life = life.after(Done())


def wait_for_news(
    bus: Bus,
    ends: Mapping[str, Sequence[int]],
    deadline_ms: int | None,
    clock: Clock,
    tick_ms: int,
) -> None:
    """Return when an input has grown, a timer is due, or after a moment."""
    timeout = IDLE_WAIT_S if len(ends) == 1 else tick_ms / 1000
    if deadline_ms is not None:
        timeout = min(timeout, max(0.0, (deadline_ms - clock.now_ms()) / 1000))
    for name, known in ends.items():
        bus.stream(name).wait(known, timeout)
        return
    clock.sleep(timeout)
