"""Drives the parts of a job at the same time: one thread each.

A part has slots of its own, so an epoch that takes long holds up no other part's. Only where
there are fewer cores than parts do these take turns, task by task.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.loop import Control
from headrace.coordinator.running.dropping import DroppedError


def drive_parts(
    parts: Sequence[Coordinator], drive: Callable[[Coordinator], None], control: Control
) -> None:
    """Drive each part until it has ended or the job is told to stop; one in this thread.

    A part that fails stops the others, which end their epochs.

    Args:
        parts: started.
        drive: drives one part; called in a thread for each of several.
        control: is told to stop when a part fails.

    Raises:
        BaseException: what a part failed with, the first where several did.
    """
    if len(parts) == 1:
        drive(parts[0])
        return
    failed: list[BaseException] = []

    def run(part: Coordinator) -> None:
        try:
            drive(part)
        except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
            failed.append(error)
            control.stop.set()

    threads = [
        threading.Thread(target=run, args=(part,), name=f"headrace {part.state.job}")
        for part in parts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        # What was dropped because of a failure elsewhere is not what went wrong.
        raise next((e for e in failed if not isinstance(e, DroppedError)), failed[0])
