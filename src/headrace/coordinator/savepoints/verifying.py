"""Whether a savepoint is whole, and whether the inputs still hold what is read next after it."""

from __future__ import annotations

from pathlib import Path

from headrace.bus.bus import Bus
from headrace.coordinator.savepoints.form import Savepoint, damaged
from headrace.coordinator.savepoints.taking import summed
from headrace.errors import InvalidInputError


def verify_files(folder: Path, saved: Savepoint) -> None:
    """Read every file of a savepoint.

    Raises:
        CorruptDataError: one is missing, or differs from what was written.
    """
    for name, file in saved.members():
        path = folder / name
        if path.is_symlink() or not path.is_file():
            raise damaged(folder, f"file {name} is missing")
        size, checksum = summed(path)
        if size != file.size:
            raise damaged(folder, f"file {name} has {size:,} bytes, expected {file.size:,}")
        if checksum != file.checksum:
            raise damaged(folder, f"file {name} does not match its checksum")


def check_inputs(saved: Savepoint, bus: Bus) -> None:
    """Make sure that the streams hold what is to be read next.

    Raises:
        InvalidInputError: one is not there, begins later, or ends before.
    """
    there = {*bus.names(), *bus.aliases()}
    for part in saved.parts:
        for operator, positions in part.state.inputs.items():
            name = part.catalog.inputs.get(operator, operator)
            if operator in part.catalog.feeds:
                continue
            if name not in there:
                raise InvalidInputError(
                    f"savepoint {saved.name!r} goes on in stream {name!r}, which is not on the bus",
                    stream=name,
                )
            begins, ends = bus.stream(name).begins(), bus.stream(name).ends()
            for partition, at in positions.items():
                begin, end = (
                    (begins[partition], ends[partition]) if partition < len(begins) else (0, 0)
                )
                if not begin <= at.next_offset <= end:
                    raise InvalidInputError(
                        f"savepoint {saved.name!r} goes on at offset {at.next_offset} of stream "
                        f"{name!r}, partition {partition}, which holds {begin} to {end}: rows were "
                        "dropped, or it is another stream of that name; use a later savepoint",
                        stream=name,
                        partition=partition,
                    )
