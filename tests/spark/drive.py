"""A driver process: runs one job as its argument says, and prints how it ended as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from tests.spark.jobs import MAKERS

from headrace.config import load_settings
from headrace.coordinator.summary import EpochSummary
from headrace.errors import HeadraceError
from headrace.faults import injected
from headrace.spark import run


def main(order: dict[str, Any]) -> dict[str, Any]:
    job = MAKERS[order["job"]](Path(order["gates"]))
    settings = load_settings(None, order["sets"], {})
    epochs: list[int] = []

    def on_epoch(summary: EpochSummary) -> None:
        epochs.append(summary.rows)

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with ExitStack() as stack:
        if order["unlocked"]:  # as on two hosts, where the locks are not the same
            stack.enter_context(mock.patch.object(run, "DriverLock"))
        if order["die_at"] is not None:
            stack.enter_context(_dying(*order["die_at"]))
        try:
            over = order.get("takes_over", False)
            result = run.run_job(job, settings, on_epoch=on_epoch, on_notice=tell, takes_over=over)
        except HeadraceError as error:
            return {"error": type(error).__name__, "message": str(error), "rows": epochs}
    return {"ended": result.state.ended, "interrupted": result.interrupted, "rows": epochs}


def _dying(point: str, nth: int) -> Any:
    passed = 0

    def hook(name: str) -> None:
        nonlocal passed
        passed += name == point
        if name == point and passed == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    return injected(hook, (point,))


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))), flush=True)
