"""Runs ``spark-submit``, and lets a driver on this host end its epoch when it is to stop."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def launch(command: Sequence[str], storage: Path | None) -> int:
    """Run ``spark-submit`` to its end; return its exit code.

    Call from the main thread. Ctrl-C and SIGTERM would end Spark under the driver. So the first is
    handed to the driver alone, which ends its epoch; the second ends all at once.

    Args:
        command: the call.
        storage: of the job, if its driver runs on this host.
    """
    process = subprocess.Popen(command, start_new_session=True)
    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        driver = None if storage is None or asked else _driver(storage)
        asked.append(number)
        with suppress(ProcessLookupError):
            if driver is None:
                os.killpg(process.pid, signal.SIGTERM)
            else:
                os.kill(driver, signal.SIGTERM)

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)


def _driver(storage: Path) -> int | None:
    """Return the process that drives a job."""
    with suppress(OSError, ValueError):
        return int((storage / "driver.lock").read_text())
    return None
