"""What a committed epoch survives: the setting ``state.durability`` and what it promises."""

from __future__ import annotations

import re
from dataclasses import dataclass

_BACKUP = re.compile(r"backup\(\s*(\d+)\s*(ms|s|m|h)\s*\)")
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}

EPOCH_PROMISE = (
    "exactly once: state and outputs of a committed epoch survive the loss of any process or host, "
    "for epochs commit to job_dir"
)
BACKUP_PROMISE = (
    "exactly once while this host's disk lives, for epochs commit to it; when it is lost, state "
    "is that of the last copy in job_dir, one every {every} while job_dir answers, the input is "
    "read again from there, and outputs after it appear again: at least once"
)


@dataclass(frozen=True)
class Durability:
    """When state is safe, and from what.

    ``interval_ms`` is that of the copies of ``backup(interval)``; ``None``: every epoch is
    committed to job_dir itself.
    """

    interval_ms: int | None = None

    @classmethod
    def parse(cls, text: str) -> Durability:
        """Read ``epoch`` or ``backup(30s)``.

        Raises:
            ValueError: anything else, or an interval of zero.
        """
        if text.strip() == "epoch":
            return cls()
        found = _BACKUP.fullmatch(text.strip())
        if found is None or int(found[1]) == 0:
            raise ValueError("epoch, or backup(interval) such as backup(30s), is expected")
        return cls(int(found[1]) * _UNITS[found[2]])

    @property
    def is_backup(self) -> bool:
        """Say whether epochs commit to the host's own disk."""
        return self.interval_ms is not None

    @property
    def promise(self) -> str:
        """Return what is promised, in a sentence."""
        return BACKUP_PROMISE.format(every=self._every) if self.is_backup else EPOCH_PROMISE

    @property
    def _every(self) -> str:
        interval = self.interval_ms or 0
        unit = next(u for u in ("h", "m", "s", "ms") if interval % _UNITS[u] == 0)
        return f"{interval // _UNITS[unit]}{unit}"

    def __str__(self) -> str:
        """Return it as the setting has it."""
        return f"backup({self._every})" if self.is_backup else "epoch"
