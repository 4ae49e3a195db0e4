"""What SQL on DuckDB and on Spark have in common: names of columns, and tables that are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.errors import HeadraceError


def apart(names: Sequence[str]) -> list[str]:
    """Number names of columns that come again, for a row has each once."""
    taken: list[str] = []
    for name in names:
        free, number = name, 0
        while free in taken or (number and free in names):
            number += 1
            free = f"{name}_{number}"
        taken.append(free)
    return taken


def passed_over(told: str, failed: Mapping[str, HeadraceError]) -> str:
    """Return why a query was refused, with the tables that it could not have.

    Args:
        told: by the engine.
        failed: tables that cannot be read.
    """
    missing = [error.message for name, error in failed.items() if name.lower() in told.lower()]
    return "; ".join([told, *missing])
