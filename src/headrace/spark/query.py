"""Epochs under a Structured Streaming query, for its triggers, listener and UI.

The query's batch is only the wake-up; offsets are those of the manifest. Its checkpoint is
scratch of one generation: it lives in a folder of that generation and is removed at the end.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from headrace.config import Settings
from headrace.coordinator.backup.places import places
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.loop import Control
from headrace.coordinator.patience import Patience
from headrace.coordinator.summary import EpochSummary
from headrace.errors import UnavailableError
from headrace.spark.runner import first_line
from headrace.spark.source import NAME, WakeSource

POLL_S = 0.1


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
    job = coordinator.state.job
    root = places(settings, job).storage
    checkpoint = root / "query" / f"{coordinator.generation:08d}"
    failed: list[Exception] = []
    busy = threading.Lock()

    def one_epoch(batch: DataFrame, number: int) -> None:
        del batch, number
        with busy:
            if control.stop.is_set() or failed:
                return
            try:
                summary = patience.until_room(coordinator.advance)
                if summary is not None:
                    on_epoch(summary)
            except Exception as error:  # noqa: BLE001 - raised below; Spark would tell it in Java
                failed.append(error)

    session.dataSource.register(WakeSource)
    inputs = coordinator.named_inputs()
    query = (
        session.readStream.format(NAME)
        .option("bus", str(settings.bus_dir))
        .option("storage", str(root))
        .option("inputs", msgspec.json.encode(inputs).decode())
        .option("patterns", msgspec.json.encode(coordinator.patterns).decode())
        .load()
        .writeStream.foreachBatch(one_epoch)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=f"{settings.epoch.interval_ms} milliseconds")
        .queryName(f"headrace {job}")
        .start()
    )
    try:
        while query.isActive and not coordinator.state.ended:
            if control.finish.is_set():
                with busy:
                    coordinator.end_at_present()
            if busy.acquire(blocking=False):  # an epoch under way looks for requests itself
                try:
                    coordinator.serve_requests()
                finally:
                    busy.release()
            if failed or control.stop.wait(POLL_S):
                break
        with busy:  # stopping a query in mid-batch would drop the epoch
            query.stop()
        query.awaitTermination()
    except StreamingQueryException as error:
        if not failed:
            text = f"the streaming query failed: {first_line(error)}; Spark's log has the story"
            raise UnavailableError(text) from error
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)
    if failed:
        raise failed[0]
