"""What a batch of a query does while its job is paused."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.coordinator.loop import Control
from headrace.coordinator.patience import Patience
from headrace.spark.query import _Epochs
from headrace.testing import TestDriver


@hr.job("copy")
def copy(g: hr.Graph) -> None:
    g.input("in").send_to(g.output("out"))


def test_a_paused_batch_waits_for_one_that_returns_is_called_again_at_once() -> None:
    with TestDriver(copy) as driver:
        driver.create("in", {"n": pa.int64()})
        driver.feed("in", [{"n": 1}])
        control, seen = Control(), list[Any]()
        patience = Patience(driver.clock, control.stop, 0)
        epochs = _Epochs(driver.parts[0], control, seen.append, patience)
        control.paused.set()
        batches = [threading.Thread(target=epochs.one, args=(None, 0)) for _ in range(2)]
        batches[0].start()
        batches[0].join(0.3)
        assert batches[0].is_alive()
        epochs.between()  # what others ask is done nevertheless
        assert not seen
        control.paused.clear()
        batches[0].join()
        assert [summary.rows for summary in seen] == [1]
        control.paused.set()
        batches[1].start()
        control.stop.set()
        batches[1].join()
        assert len(seen) == 1
