"""What ``jobs describe`` says of hosts: what each has, and what moved."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from headrace.cli.screen import show_table
from headrace.cli.words import count_text, size_text
from headrace.coordinator.hosts.record import LOST, MOVED
from headrace.coordinator.inspection.host_views import (
    happening_text,
    host_views,
    pending_moves,
)

if TYPE_CHECKING:
    from headrace.coordinator.inspection.host_views import HostView
    from headrace.coordinator.manifest import JobState

PLACEMENT = "placement."


def placement_json(state: JobState) -> dict[str, Any]:
    """Return it for programs."""
    return {
        "hosts": [asdict(view) for view in host_views(state)],
        "moves": {
            "done": state.counts.get(MOVED, 0),
            "lost": state.counts.get(LOST, 0),
            "pending": pending_moves(state),
        },
        "story": [
            {
                "time_ms": one.time_ms,
                "what": str(one.what),
                "host": one.host,
                "text": happening_text(one, state),
            }
            for one in state.story
        ],
    }


def placement_facts(state: JobState) -> list[tuple[str, str]]:
    """Say how many tasks moved and are to move, where any did or are."""
    moved, lost, pending = (
        state.counts.get(MOVED, 0),
        state.counts.get(LOST, 0),
        pending_moves(state),
    )
    if not (moved or lost or pending):
        return []
    said = [f"{moved:,} done", f"{pending:,} to come"]
    if lost:
        said.append(f"{count_text(lost, 'task')} had lost their host")
    return [("moves", ", ".join(said))]


def show_placement(state: JobState) -> None:
    """Print the hosts."""
    rows = [_row(view) for view in host_views(state)]
    if rows:
        typer.echo()
        numbers = ("slots", "tasks", "a slot", "standbys", "state")
        show_table(("host", "status", *numbers), rows, right=numbers)


def _row(view: HostView) -> list[str]:
    share = f"{view.tasks / view.slots:.1f}".removesuffix(".0") if view.slots else "-"
    return [
        view.address or view.host,
        view.status,
        f"{view.slots}",
        f"{view.tasks}",
        share,
        f"{view.standbys}",
        size_text(view.state_bytes),
    ]
