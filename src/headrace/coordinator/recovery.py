"""Watches the slots of a job bring their stores back: how far they are, and that they move."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.clock import Clock
from headrace.closeable import running_beside
from headrace.errors import UnavailableError
from headrace.files import Files
from headrace.remote import is_remote
from headrace.state.restore import FOLDER, RestoreProgress

LOOK_S = 0.5
LOOK_REMOTE_S = 5.0
"""How often an object storage is asked whether anybody recovers; while somebody does, the other."""


class RecoveryStalledError(UnavailableError):
    """A task's recovery has not moved for ``state.recovery_timeout_s``; see to its file."""

    code = "HR205"
    move = "check whether the disk of that file answers, then run the job again"


@dataclass(frozen=True)
class Recovery:
    """How far the recovery of all slots is together; bytes are those of committed files.

    ``rate`` is in bytes a second, ``eta_s`` what is left at that rate; ``None``: not known yet.
    ``stage``, ``task`` and ``file`` are those of the slot with the most left to do.
    """

    epoch: int
    tasks_done: int
    tasks: int
    bytes_done: int
    bytes_total: int
    rows: int
    rate: float
    eta_s: float | None
    stage: str
    task: int
    file: str


@dataclass
class _Seen:
    said: RestoreProgress
    since: float
    first: RestoreProgress
    began: float


@dataclass
class RecoveryWatch:
    """What the slots say of themselves, and since when.

    Args:
        storage: of the job.
        files: the file system.
        clock: for rates and for how long nothing moved.
        timeout_s: after which a slot that did not move is given up.
    """

    storage: Path
    files: Files
    clock: Clock
    timeout_s: float
    _seen: dict[str, _Seen] = field(default_factory=dict)

    def look(self) -> Recovery | None:
        """Read what every slot says; ``None`` when none is recovering."""
        folder, now = self.storage / FOLDER, self.clock.monotonic()
        found = {}
        for name in self.files.names(folder):
            try:
                said = msgspec.json.decode(self.files.read(folder / name), type=RestoreProgress)
            except FileNotFoundError:
                continue
            before = self._seen.get(name)
            if before is None or said.epoch != before.said.epoch or said.step < before.said.step:
                found[name] = _Seen(said, now, said, now)
            elif said != before.said:
                found[name] = _Seen(said, now, before.first, before.began)
            else:
                found[name] = before
        self._seen = found
        return self._sum(now) if found else None

    def _sum(self, now: float) -> Recovery:
        seen = list(self._seen.values())
        said = [one.said for one in seen]
        rate = 0.0
        for one in seen:
            if now > one.began:
                rate += (one.said.bytes_done - one.first.bytes_done) / (now - one.began)
        left = sum(one.bytes_total - one.bytes_done for one in said)
        last = max(said, key=lambda one: one.bytes_total - one.bytes_done)
        return Recovery(
            epoch=last.epoch,
            tasks_done=sum(one.tasks_done for one in said),
            tasks=sum(one.tasks for one in said),
            bytes_done=sum(one.bytes_done for one in said),
            bytes_total=sum(one.bytes_total for one in said),
            rows=sum(one.rows for one in said),
            rate=rate,
            eta_s=left / rate if rate > 0 else None,
            stage=last.stage,
            task=last.task,
            file=last.file,
        )

    def stalled(self) -> RecoveryStalledError | None:
        """Return the error of a slot that has not moved for too long, if there is one.

        Looks at nothing but what ``look`` saw, so it also answers when the disk hangs.
        """
        now = self.clock.monotonic()
        for one in self._seen.values():
            if now - one.since < self.timeout_s:
                continue
            said = one.said
            return RecoveryStalledError(
                f"recovery of task {said.task} of stage {said.stage!r} has not moved for "
                f"{self.timeout_s:.0f} s, at {said.file}; check whether its disk answers and no "
                "stopped process holds it, then run again, or raise state.recovery_timeout_s",
                stage=said.stage,
                task=said.task,
                file=said.file,
                slot=said.slot,
                epoch=said.epoch,
            )
        return None


@contextmanager
def watching(
    watch: RecoveryWatch,
    show: Callable[[Recovery | None], None],
    give_up: Callable[[RecoveryStalledError], None],
) -> Iterator[None]:
    """Look at the recovery while a block runs, in threads of their own.

    Args:
        watch: what to look at.
        show: called with what is new, and with ``None`` when recovery is over.
        give_up: called once when it no longer moves.
    """

    def look(over: threading.Event) -> None:
        was_shown, idle_s = False, LOOK_REMOTE_S if is_remote(watch.storage) else LOOK_S
        while not over.wait(LOOK_S if was_shown else idle_s):
            found = watch.look()
            if found is not None or was_shown:
                show(found)
            was_shown = found is not None

    def guard(over: threading.Event) -> None:
        while not over.wait(LOOK_S):
            error = watch.stalled()
            if error is not None:
                give_up(error)
                return

    # Two, for the one that looks may hang where the slots do.
    name = "headrace-recovery"
    with running_beside(name, look, LOOK_S), running_beside(name, guard):
        yield
