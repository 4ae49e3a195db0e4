"""A driver process: runs one job as its argument says, and prints how it ended as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.support.jobs import MAKERS

import headrace as hr
from headrace.config import load_settings
from headrace.coordinator.epoch_records import EpochSummary
from headrace.testing import call_at


def main(order: dict[str, Any]) -> dict[str, Any]:
    job = MAKERS[order["job"]](Path(order["gates"]))
    settings = load_settings(None, order["sets"], {})
    epochs: list[int] = []

    def on_epoch(summary: EpochSummary) -> None:
        epochs.append(summary.rows)

    def notify(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with ExitStack() as stack:
        if order["limits"]:
            from tests.support.limits import limited

            stack.enter_context(limited(**order["limits"]))
        if order["die_at"] is not None:
            point, nth = order["die_at"]
            stack.enter_context(call_at(point, _die, nth))
        try:
            result = _run(order, job, settings, on_epoch=on_epoch, on_notice=notify)
        except hr.HeadraceError as error:
            return {"error": type(error).__name__, "message": str(error), "rows": epochs}
    state = result.state
    return {"ended": state.ended, "interrupted": result.interrupted, "rows": epochs}


def _run(order: dict[str, Any], job: hr.Job, settings: Any, **listeners: Any) -> Any:
    if order["way"] == "spark":
        from headrace.spark.run import run_job

        return run_job(job, settings, **listeners)
    result = hr.run(job, settings, join=order["way"] == "shared", **listeners)
    assert not {"pyspark", "py4j"} & set(sys.modules)
    return result


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))), flush=True)
