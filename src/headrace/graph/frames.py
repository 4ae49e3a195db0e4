"""Spark DataFrames as inputs: how one is made, and the internal stream that its rows go through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FRAME_SUFFIX = ".dataframe"


def frame_stream(job: str, operator: str) -> str:
    """Return the name of the internal stream of an input that is a DataFrame."""
    return f"{job}.{operator}{FRAME_SUFFIX}"


class FrameSource:
    """Makes the DataFrame that an input reads, in the driver; workers have no need of it.

    Args:
        make: gets the session, returns a DataFrame, batch or streaming; ``None`` in a worker.
        key: columns by whose values rows are placed in the internal stream.
        partitions: of the internal stream; ``None``: as many as a keyed stage has tasks.
    """

    def __init__(
        self,
        make: Callable[[Any], Any] | None,
        key: tuple[str, ...] = (),
        partitions: int | None = None,
    ) -> None:
        self.make, self.key, self.partitions = make, key, partitions

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the function behind: it may hold what cannot travel, such as a session."""
        return (FrameSource, (None, self.key, self.partitions))
