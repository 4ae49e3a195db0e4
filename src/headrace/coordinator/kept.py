"""Which files older epochs still need: those that are kept, so that commands can read them."""

from __future__ import annotations

from headrace.coordinator.commit_log import CommitLog
from headrace.coordinator.history import states
from headrace.coordinator.manifest import JobState


class KeptEpochs:
    """Watches which files epochs no longer name, and until when these stay.

    ``observe`` is told every committed state; a driver that starts reads the epochs that are
    kept once, so a restart forgets nothing.

    Args:
        log: of manifests.
        keep: how many epochs before the newest can be read.
        most_bytes: of files that only they need; fewer epochs are kept where these are more.
    """

    def __init__(self, log: CommitLog, keep: int, most_bytes: int) -> None:
        self._log, self._keep, self._most_bytes = log, keep, most_bytes
        self._last: JobState | None = None
        self._released: dict[str, tuple[int, int]] = {}  # the last epoch that names it, bytes

    def first_of(self, epoch: int, before: int) -> int:
        """Return the oldest epoch that is kept once another is committed.

        Args:
            epoch: that one.
            before: the oldest that was kept before; what is gone does not come back.
        """
        first = max(before, epoch - self._keep, 0)
        held = sorted(entry for entry in self._released.values() if entry[0] >= first)
        size = sum(own for _, own in held)
        for released, own in held:
            if size <= self._most_bytes:
                break
            first, size = released + 1, size - own
        return min(first, epoch)

    def observe(self, state: JobState) -> None:
        """Take note of the newest state."""
        last = self._last
        if last is not None and last.digest == state.digest:
            return
        if last is None or last.epoch + 1 != state.epoch or state.lineage != last.lineage:
            self._read(state)
        else:
            self._compare(last, state)
        self._last = state

    def _read(self, state: JobState) -> None:
        before: JobState | None = None
        for later in states(self._log, state.epoch):
            if before is not None:
                self._compare(before, later)
            before = later

    def _compare(self, before: JobState, after: JobState) -> None:
        for name, task in before.tasks.items():
            later = after.tasks.get(name)
            if later is task:
                continue
            kept = {ref.path for ref in later.files} if later is not None else set()
            for ref in task.files:
                if ref.path not in kept:
                    self._released[ref.path] = before.epoch, ref.size

    def files(self, state: JobState) -> set[str]:
        """Return the files that the newest state or a kept one names."""
        self.observe(state)
        for path, (epoch, _) in list(self._released.items()):
            if epoch < state.kept_from:
                del self._released[path]
        return state.files() | self._released.keys()
