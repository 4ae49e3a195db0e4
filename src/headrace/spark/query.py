"""Epochs under a Structured Streaming query, for its triggers, listener and UI.

The query's batch is only the wake-up; offsets are those of the manifest. Its checkpoint is
scratch of one generation: it lives in a folder of that generation and is removed at the end.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.config import Settings
from headrace.coordinator.backup.places import places
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.loop import Control
from headrace.coordinator.patience import Patience
from headrace.coordinator.story import MERGING, PAUSED, RESUMED
from headrace.coordinator.summary import EpochSummary
from headrace.errors import UnavailableError
from headrace.spark.runner import first_line
from headrace.spark.source import NAME, WakeSource

POLL_S = 0.1


class _Epochs:
    """What the batches of a query do: an epoch each, one at a time, until one has failed."""

    def __init__(
        self,
        coordinator: Coordinator,
        control: Control,
        on_epoch: Callable[[EpochSummary], None],
        patience: Patience,
    ) -> None:
        self._coordinator, self._control = coordinator, control
        self._on_epoch, self._patience = on_epoch, patience
        self.busy = threading.Lock()
        self.failure: Exception | None = None
        self._was_paused = False

    def one(self, batch: DataFrame, number: int) -> None:
        """Run an epoch; called by Spark for each batch."""
        del batch, number
        control = self._control
        while control.is_paused and self.failure is None:
            if control.stop.wait(POLL_S):  # one that returned would be called again at once
                break
        with self.busy:
            if control.stop.is_set() or control.is_paused or self.failure is not None:
                return
            try:
                summary = self._patience.until_room(self._coordinator.advance)
                if summary is not None:
                    self._on_epoch(summary)
            except Exception as error:  # noqa: BLE001 - raised by who waits; Spark would tell it in Java
                self.failure = error

    def between(self) -> None:
        """Do what others ask of the job, where no epoch is under way that would do it itself."""
        if (is_paused := self._control.is_paused) != self._was_paused:
            self._was_paused = is_paused
            why = MERGING if self._control.merging.is_set() else PAUSED
            self._coordinator.story.tell(*(why if is_paused else RESUMED))
        if self._control.finish.is_set():
            with self.busy:
                self._patience.until_room(self._coordinator.end_at_present)
        if self.busy.acquire(blocking=False):
            try:
                self._patience.until_room(self._coordinator.serve_requests)
            finally:
                self.busy.release()


def drive_query(
    session: SparkSession,
    coordinator: Coordinator,
    control: Control,
    on_epoch: Callable[[EpochSummary], None],
    settings: Settings,
    patience: Patience,
) -> None:
    """Advance a started job under a query until it has ended or is told to stop.

    Args:
        session: Spark.
        coordinator: started.
        control: looked at between epochs.
        on_epoch: called after each epoch, on the query's thread.
        settings: of the run.
        patience: with a full disk.

    Raises:
        HeadraceError: what an epoch raised, as it was.
        UnavailableError: the query itself failed.
    """
    epochs = _Epochs(coordinator, control, on_epoch, patience)
    root = places(settings, coordinator.state.job).storage
    checkpoint = root / "query" / f"{coordinator.generation:08d}"
    query = _started(session, coordinator, settings, checkpoint, epochs.one)
    try:
        while query.isActive and not coordinator.state.ended:
            epochs.between()
            if epochs.failure is not None or control.stop.wait(POLL_S):
                break
        with epochs.busy:  # stopping a query in mid-batch would drop the epoch
            query.stop()
        query.awaitTermination()
    except StreamingQueryException as error:
        if epochs.failure is None:
            text = f"the streaming query failed: {first_line(error)}; Spark's log has the story"
            raise UnavailableError(text) from error
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)
    if epochs.failure is not None:
        raise epochs.failure


def _started(
    session: SparkSession,
    coordinator: Coordinator,
    settings: Settings,
    checkpoint: Path,
    one_epoch: Callable[[DataFrame, int], None],
) -> StreamingQuery:
    job = coordinator.state.job
    session.dataSource.register(WakeSource)
    return (
        session.readStream.format(NAME)
        .option("bus", str(settings.bus_dir))
        .option("storage", str(places(settings, job).storage))
        .option("inputs", msgspec.json.encode(coordinator.named_inputs()).decode())
        .option("patterns", msgspec.json.encode(coordinator.patterns).decode())
        .load()
        .writeStream.foreachBatch(one_epoch)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=f"{settings.epoch.interval_ms} milliseconds")
        .queryName(f"headrace {job}")
        .start()
    )
