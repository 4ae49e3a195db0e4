"""The committed data of one task, behind one small contract.

A backend never sees an epoch that is not committed, so it has no transactions and no
rollback: it moves from one position to a later one, data and position in one step, or is
cleared and filled again. ``memory`` and ``rocksdb`` implement it; ``headrace.testing``
ships the contract as a test suite.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from headrace.state.ownership import Owner
from headrace.state.position import Position

Changes = tuple[Sequence[bytes], Sequence[bytes | None]]
"""Keys and their values, of equal length; a value of ``None`` deletes. Keys do not repeat."""

Columns = tuple[pa.BinaryArray, pa.BinaryArray]
"""The same as columns."""


class Backend(ABC):
    """Committed entries of one task over several named stores.

    Keys are full keys: two bytes of key group, big endian, then the user's key. One thread
    at a time calls; an open scan sees the data as it was when it began, and ends at ``close``.
    """

    @property
    @abstractmethod
    def position(self) -> Position | None:
        """The committed state held, or ``None`` when empty or filled only in part."""

    @property
    def is_damaged(self) -> bool:
        """Say whether local data was found unreadable; only ``clear`` helps."""
        return False

    def own(self, owner: Owner | None) -> None:  # noqa: B027 - what is not on disk needs none
        """Go on for an owner; called before anything else of an epoch.

        Raises:
            NotOwnerError: a newer generation has taken what is on disk; close, do not retry.
        """

    @abstractmethod
    def apply(self, changes: Mapping[str, Changes], position: Position | None) -> None:
        """Write changes and position in one atomic step.

        After a crash the data is that of the position, and applying the same changes again
        leaves the same data. Where stores reached the disk one after the other, some may be
        ahead of the position; applying what follows it brings all to the same.

        Args:
            changes: by store; sorted keys are written faster.
            position: reached by these changes; ``None`` while a snapshot is loaded in
                several steps, so that a crash between them leaves no position behind.

        Raises:
            InvalidInputError: a store that this backend was not opened with.
            CorruptDataError: local data is unreadable; clear and fill again.
            UnavailableError: the disk is full or refuses to write.
        """

    def load(self, store: str, batches: Iterable[Columns]) -> None:
        """Fill a store that is empty, after ``clear``; leaves no position, as ``apply`` of None.

        Args:
            store: its name.
            batches: of full keys and values, none null, rising over all batches.

        Raises:
            InvalidInputError: a store that this backend was not opened with.
            CorruptDataError: local data is unreadable; clear and fill again.
            UnavailableError: the disk is full or refuses to write.
        """
        for keys, values in batches:
            self.apply({store: (keys.to_pylist(), values.to_pylist())}, None)

    @abstractmethod
    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key in order, ``None`` where there is none."""

    @abstractmethod
    def scan(
        self, store: str, low: bytes = b"", high: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries with ``low <= key < high`` in key order; ``None`` has no upper end."""

    @abstractmethod
    def clear(self) -> None:
        """Throw away all data and the position."""

    @abstractmethod
    def store_bytes(self) -> dict[str, int]:
        """Return about how many bytes the live entries of each store take."""

    @abstractmethod
    def flush(self, *, wait: bool = True) -> None:
        """Make what was applied survive a crash of the process; costs I/O.

        Without ``wait`` that only begins, and is done some time later.
        """

    @abstractmethod
    def close(self) -> None:
        """Flush, release files and locks; closing twice is fine, other use is an error."""
