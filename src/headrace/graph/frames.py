"""Spark DataFrames as inputs: how one is made, and the internal stream that its rows go through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headrace.config.inputs import InputSettings

FRAME_SUFFIX = ".dataframe"
FRAME_FOLDER = "frames"
"""Folder of a job's storage with what its driver knows of each DataFrame, by the input's name."""
FRAME_NOTE = "run"
"""A file in there: the run of the job that the internal stream is of."""


def frame_stream(job: str, operator: str) -> str:
    """Return the name of the internal stream of an input that is a DataFrame."""
    return f"{job}.{operator}{FRAME_SUFFIX}"


class FrameSource:
    """Makes the DataFrame that an input reads, in the driver; workers have no need of it.

    Args:
        make: gets the session, returns a DataFrame, batch or streaming; ``None`` in a worker.
        key: columns by whose values rows are placed in the internal stream.
        partitions: of the internal stream; ``None``: as many as a keyed stage has tasks.
        instead: what the settings put in the place of a stream, instead of a function.
    """

    def __init__(
        self,
        make: Callable[[Any], Any] | None,
        key: tuple[str, ...] = (),
        partitions: int | None = None,
        instead: SettingsFrame | None = None,
    ) -> None:
        self.make, self.key, self.partitions, self.instead = make, key, partitions, instead

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave behind what cannot travel, such as a session, or is to stay, such as a secret."""
        return (FrameSource, (None, self.key, self.partitions))


class SettingsFrame:
    """A DataFrame that the settings put in the place of a stream.

    Args:
        stream: that the code names.
        given: what the settings say.
        columns: that it has to have; ``None``: whichever it has.
    """

    def __init__(self, stream: str, given: InputSettings, columns: pa.Schema | None) -> None:
        self.stream, self.given, self.columns = stream, given, columns
