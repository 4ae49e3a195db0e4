"""The part of the HTTP API that is about hosts: which there are, and what may be asked of them."""

from __future__ import annotations

from typing import Protocol

from fastapi import FastAPI
from pydantic import Field

from headrace.control.board import Board
from headrace.control.models import Model
from headrace.coordinator.inspection.host_views import (
    HostView,
    happening_text,
    host_views,
    pending_moves,
)
from headrace.coordinator.joined import joined_state

ASK_S = 30.0


class HostInfo(Model):
    """One host of the job."""

    host: str = Field(description="identity of its state directory")
    address: str
    status: str = Field(description="up, lost, draining or drained")
    slots: int
    tasks: int
    standbys: int
    state_bytes: int
    everywhere: bool = Field(description="all jobs of the home are to leave it, not this one alone")


class HappeningInfo(Model):
    """Something that happened to the hosts of the job."""

    time_ms: int
    what: str
    host: str
    text: str


class PlacementInfo(Model):
    """Where the job's tasks are."""

    hosts: list[HostInfo]
    moves_pending: int = Field(description="tasks that are to leave hosts that are up")
    story: list[HappeningInfo] = Field(description="oldest first")


class HostAsk(Model):
    """A host, by its address, or by its identity or the begin of that."""

    host: str = Field(min_length=1)


class RestartAsk(Model):
    """How processes are to be renewed."""

    rolling: bool = Field(True, description="one host after the other")


class RestartDone(Model):
    """The hosts that have new processes."""

    hosts: list[str]


class HostAsks(Protocol):
    """What asks the driver, and waits."""

    def drain(self, named: str, wait_s: float, *, undo: bool) -> str:
        """Have a host be empty, or be used again; returns its identity."""
        ...

    def restart(self, wait_s: float, *, rolling: bool) -> list[str]:
        """Renew processes; returns the hosts that got some."""
        ...


def add_hosts(app: FastAPI, board: Board, asks: HostAsks) -> None:
    """Add the routes to an app."""

    @app.get("/v1/placement")
    def placement() -> PlacementInfo:
        """The hosts of the job, and what became of them lately."""
        state = joined_state(board.states)
        return PlacementInfo(
            hosts=[_info(view) for view in host_views(state)],
            moves_pending=pending_moves(state),
            story=[
                HappeningInfo(
                    time_ms=one.time_ms,
                    what=str(one.what),
                    host=one.host,
                    text=happening_text(one, state),
                )
                for one in state.story
            ],
        )

    @app.post("/v1/drain")
    def drain(wanted: HostAsk) -> HostInfo:
        """Have a host be empty: its tasks and standbys move away, and none come."""
        return _of(asks.drain(wanted.host, ASK_S, undo=False))

    @app.post("/v1/undrain")
    def undrain(wanted: HostAsk) -> HostInfo:
        """Use a host again that was drained."""
        return _of(asks.drain(wanted.host, ASK_S, undo=True))

    @app.post("/v1/restart")
    def restart(wanted: RestartAsk) -> RestartDone:
        """Renew the processes that run tasks; the driver stays."""
        return RestartDone(hosts=asks.restart(ASK_S, rolling=wanted.rolling))

    def _of(host: str) -> HostInfo:
        views = host_views(joined_state(board.states))
        return next(_info(view) for view in views if view.host == host)


def _info(view: HostView) -> HostInfo:
    return HostInfo(
        host=view.host,
        address=view.address,
        status=view.status,
        slots=view.slots,
        tasks=view.tasks,
        standbys=view.standbys,
        state_bytes=view.state_bytes,
        everywhere=view.everywhere,
    )
