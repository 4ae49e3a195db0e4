"""Lets the aliases of one job's outputs stand for those of another, in one step."""

from __future__ import annotations

from headrace.bus.bus import Bus
from headrace.coordinator.reprocessing.pairs import (
    Outputs,
    aliases_of,
    behind,
    kept_for_sinks,
    pairs_of,
)
from headrace.errors import InvalidInputError


def swap_outputs(bus: Bus, first: Outputs, second: Outputs, *, now: bool) -> dict[str, str]:
    """Swap all outputs of two jobs that belong together; whoever reads the aliases goes over.

    Args:
        bus: the streams.
        first: whose outputs the aliases stand for.
        second: whose outputs they are to stand for.
        now: although the second one has not read as far as the first.

    Returns:
        The new stream of each alias.

    Raises:
        InvalidInputError: an output of the first has no alias, the second one is behind, or keeps
            rows for sinks; nothing is swapped.
    """
    pairs = pairs_of(first, second)
    late = behind(first, second)
    if late and not now:
        told = ", ".join(f"{rows:,} rows of {stream}" for stream, rows in late.items())
        raise InvalidInputError(
            f"job {second.job!r} is behind {first.job!r}: {told}; let it catch up, or swap "
            "nevertheless with --now"
        )
    for operator, stream in kept_for_sinks(first, second).items():
        raise InvalidInputError(
            f"job {second.job!r} keeps in {stream!r} what it has for {first.sinks[operator]}, so "
            f"readers of that would stay with {first.job!r}: stop it, and let the new code begin "
            f"from a savepoint of {second.job!r}, without --apart",
            stream=stream,
        )
    targets: dict[str, str] = {}
    for old, new in pairs.values():
        aliases = aliases_of(bus, old)
        if not aliases:
            raise InvalidInputError(
                f"no alias stands for {old!r}, so its readers cannot be led to {new!r}; make one "
                f"and let them read that: headrace bus alias {old}-current {old}",
                stream=old,
            )
        targets |= dict.fromkeys(aliases, new)
    bus.swap(targets)
    return targets
