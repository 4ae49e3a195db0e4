"""What ``jobs describe`` says of hosts: what each has, and what moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from headrace.cli.screen import show_table
from headrace.cli.words import count_text, size_text

if TYPE_CHECKING:
    from headrace.control.description import PlacementTold
    from headrace.coordinator.inspection.host_views import HostView

PLACEMENT = "placement."


def placement_facts(told: PlacementTold) -> list[tuple[str, str]]:
    """Say how many tasks moved and are to move, where any did or are."""
    moves = told.moves
    if not (moves.done or moves.lost or moves.pending):
        return []
    said = [f"{moves.done:,} done", f"{moves.pending:,} to come"]
    if moves.lost:
        their = "its" if moves.lost == 1 else "their"
        said.append(f"{count_text(moves.lost, 'task')} had lost {their} host")
    return [("moves", ", ".join(said))]


def show_placement(told: PlacementTold) -> None:
    """Print the hosts."""
    rows = [_row(view) for view in told.hosts]
    if rows:
        typer.echo()
        numbers = ("slots", "tasks", "a slot", "standbys", "state")
        show_table(("host", "status", *numbers), rows, right=numbers)


def _row(view: HostView) -> list[str]:
    share = f"{view.tasks / view.slots:.1f}".removesuffix(".0") if view.slots else "-"
    return [
        view.address or view.host,
        f"{view.status} (all jobs)" if view.everywhere else view.status,
        f"{view.slots}",
        f"{view.tasks}",
        share,
        f"{view.standbys}",
        size_text(view.state_bytes),
    ]
