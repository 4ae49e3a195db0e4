"""All that is told of a job: by its driver over the API, or of its files; printed by commands.

One object for both, so that what ``jobs ls`` and ``jobs describe`` print does not depend on who
told it; ``live`` says who did.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.clock import SystemClock
from headrace.control.alert_rules import load_alerts
from headrace.control.history import SampleLog
from headrace.control.job_status import HeavyKeys, JobStatus
from headrace.coordinator.drain import with_current_cordons
from headrace.coordinator.host_state import FOLLOWED_BYTES, FOLLOWED_MS, LOST, MOVED, STANDBY
from headrace.coordinator.inspection.job_view import (
    InputView,
    JobView,
    PartView,
    SinkView,
    StageView,
    view_job,
)
from headrace.coordinator.job_events import (
    HostView,
    JobEvent,
    event_text,
    host_views,
    pending_moves,
)
from headrace.coordinator.leader_lease import DriverProcess
from headrace.coordinator.manifest import JobState
from headrace.errors import CorruptDataError

DESCRIBED_KEYS = 3
"""Of the heaviest keys of each ``partition_by``."""


@dataclass(frozen=True)
class MemberDescription:
    """A process of a shared job; ``host_id`` is the identity of its state directory."""

    host_id: str
    host: str
    process: int
    slots: int
    drives: bool


@dataclass(frozen=True)
class EventDescription:
    """Something that happened; ``epoch`` is the last committed one before it."""

    at_ms: int
    kind: str
    text: str
    epoch: int | None


@dataclass(frozen=True)
class ClusterEventDescription:
    """Something that happened to the hosts of a job, as its manifest has it."""

    time_ms: int
    what: str
    host: str
    text: str


@dataclass(frozen=True)
class MovesDescription:
    """How many tasks changed their host, by choice or by a loss, and how many are to."""

    done: int
    lost: int
    pending: int


@dataclass(frozen=True)
class PlacementDescription:
    """Where the tasks of a job are."""

    hosts: tuple[HostView, ...]
    moves: MovesDescription
    story: tuple[ClusterEventDescription, ...]


@dataclass(frozen=True)
class StandbyProgress:
    """What the standbys of a stage have read so far, and how long that took."""

    bytes: int
    ms: int


@dataclass(frozen=True)
class RuleDescription:
    """A rule of alerts, since when it is true, and when it fired; ``None``: it is not, did not."""

    rule: str
    kind: str
    text: str
    since_ms: int | None
    fired_ms: int | None


@dataclass(frozen=True)
class JobDescription:
    """A job as of its last epoch; times in ms, ``None`` where something is not known.

    ``live``: its driver told it, else its files did. ``process`` is that of the driver, if one
    runs. Of a job that cannot be read there is a ``problem``, and no epoch.
    """

    job: str
    status: str
    live: bool
    process: int | None
    host: str | None
    storage: str
    problem: str | None = None
    members: tuple[MemberDescription, ...] = ()
    epoch: int | None = None
    oldest_epoch: int | None = None
    epoch_ms: int | None = None
    rows: int | None = None
    late: int | None = None
    dropped: int | None = None
    dead_letters: int | None = None
    counts: dict[str, int] | None = None
    lag: int | None = None
    state_bytes: int = 0
    durability: str | None = None
    lineage: str | None = None
    run: int | None = None
    bounded: bool | None = None
    generation: int | None = None
    rescaled_in: int | None = None
    parts: tuple[PartView, ...] = ()
    inputs: tuple[InputView, ...] = ()
    stages: tuple[StageView, ...] = ()
    failures: dict[str, int] | None = None
    deployed: bool = False
    standbys_to_fill: int = 0
    standbys_followed: dict[str, StandbyProgress] | None = None
    placement: PlacementDescription | None = None
    outputs: tuple[str, ...] = ()
    sinks: tuple[SinkView, ...] = ()
    alerts: tuple[RuleDescription, ...] = ()
    hot_keys: tuple[HeavyKeys, ...] = ()
    events: tuple[EventDescription, ...] = ()


def describe_job(view: JobView) -> JobDescription:
    """Return what is told of a job by its files."""
    rules, keys = _kept_rules(view.storage), SampleLog(view.storage).kept_keys()
    return replace(_of_view(view), alerts=rules, hot_keys=tuple(map(_first, keys)))


def describe_live_job(board: JobStatus) -> JobDescription:
    """Return what a driver tells of its job.

    Raises:
        UnavailableError: it has not begun yet.
    """
    own = DriverProcess(os.getpid(), os.uname().nodename, is_here=True)
    known = {state.job: state for state in board.states}
    view = view_job(board.settings, board.job, board.bus, board.clock, own, known)
    return replace(
        _of_view(view),
        status=board.status,
        live=True,
        alerts=tuple(
            RuleDescription(one.rule, one.kind, one.text, one.since_ms, one.fired_ms)
            for one in board.alerts()
        ),
        hot_keys=tuple(board.heavy_keys(DESCRIBED_KEYS)),
    )


def describe_event(event: JobEvent) -> EventDescription:
    """Return an event of a job's story."""
    epoch = event.epoch if event.epoch >= 0 else None
    return EventDescription(event.time_ms, event.kind, event.text, epoch)


def _of_view(view: JobView) -> JobDescription:
    driver, state = view.driver, view.state
    told = JobDescription(
        view.job,
        view.status,
        live=False,
        process=driver and driver.process,
        host=driver and driver.host,
        storage=str(view.storage),
        problem=view.problem or None,
        members=tuple(
            MemberDescription(one.host_id, one.host, one.process, one.slots, one.drives)
            for one in view.members
        ),
        events=tuple(map(describe_event, view.events)),
    )
    return told if state is None else _with_state(told, view, state)


def _with_state(told: JobDescription, view: JobView, state: JobState) -> JobDescription:
    counts = state.counts
    return replace(
        told,
        epoch=state.epoch,
        oldest_epoch=view.oldest_epoch,
        epoch_ms=state.time_ms,
        rows=counts.get("in", 0),
        late=counts.get("late", 0),
        dropped=counts.get("dropped", 0),
        dead_letters=counts.get("dead_letters", 0),
        counts=dict(counts),
        lag=view.lag,
        state_bytes=view.state_bytes,
        durability=state.durability,
        lineage=state.lineage,
        run=state.run,
        bounded=state.until is not None,
        generation=state.generation,
        rescaled_in=state.rescaled_at if state.rescaled_at >= 0 else None,
        parts=view.parts,
        inputs=view.inputs,
        stages=view.stages,
        failures={
            name.removeprefix(STANDBY): count
            for name, count in counts.items()
            if name.startswith(STANDBY)
        },
        deployed=view.is_deployed,
        standbys_to_fill=view.standbys_to_fill,
        standbys_followed=_followed(counts),
        placement=_placement(with_current_cordons(state, view.storage.parent)),
        outputs=view.outputs,
        sinks=view.sinks,
    )


def _followed(counts: Mapping[str, int]) -> dict[str, StandbyProgress]:
    names = [n.removeprefix(FOLLOWED_BYTES) for n in counts if n.startswith(FOLLOWED_BYTES)]
    return {
        n: StandbyProgress(counts[FOLLOWED_BYTES + n], counts.get(FOLLOWED_MS + n, 0))
        for n in names
    }


def _placement(state: JobState) -> PlacementDescription:
    return PlacementDescription(
        tuple(host_views(state)),
        MovesDescription(
            state.counts.get(MOVED, 0), state.counts.get(LOST, 0), pending_moves(state)
        ),
        tuple(
            ClusterEventDescription(one.time_ms, str(one.what), one.host, event_text(one, state))
            for one in state.story
        ),
    )


def _kept_rules(storage: Path) -> tuple[RuleDescription, ...]:
    with suppress(CorruptDataError, OSError):  # ``alerts ls`` tells of it
        return tuple(
            RuleDescription(name, held.kind, held.text, held.since_ms, held.fired_ms)
            for name, held in sorted(load_alerts(storage, SystemClock()).rules.items())
        )
    return ()


def _first(found: HeavyKeys) -> HeavyKeys:
    return replace(found, keys=found.keys[:DESCRIBED_KEYS])
