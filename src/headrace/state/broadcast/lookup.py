"""What a processor sees of a broadcast store: rows by key, to be read only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from headrace.errors import InvalidInputError
from headrace.records.keys import encode_key
from headrace.state.broadcast.table import BroadcastTable


class BroadcastStore:
    """The rows of a broadcast store in one epoch, as messages.

    The same in every task and at every retry. Keys are those of the table's columns, a tuple
    of them where there are several.

    Args:
        name: as the user declared it.
        table: of the process.
        origin: where its rows come from, in words.
    """

    __slots__ = ("_name", "_origin", "_rows", "_table")

    def __init__(self, name: str, table: BroadcastTable, origin: str) -> None:
        self._name, self._table, self._origin = name, table, origin
        self._rows = table.messages()

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the row of a key as a message, or ``default`` where there is none."""
        try:
            return self._rows.get(key, default)
        except TypeError as error:
            raise InvalidInputError(
                f"broadcast store {self._name!r}: {key!r:.100} cannot be a key: {error}; expected "
                f"a value, or a tuple of values, of {self._table.key}"
            ) from error

    def __contains__(self, key: object) -> bool:
        """Say whether a key has a row."""
        return self.get(key) is not None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def scan(self) -> Iterator[tuple[Any, Any]]:
        """Yield all keys and rows in canonical key order."""
        rows = self._rows

        def place(key: Any) -> bytes:
            return encode_key(key if isinstance(key, tuple) else (key,))

        return ((key, rows[key]) for key in sorted(rows, key=place))

    def put(self, key: Any, value: Any) -> NoReturn:
        """Refuse to write."""
        del key, value
        raise self._read_only()

    def delete(self, key: Any) -> NoReturn:
        """Refuse to write."""
        del key
        raise self._read_only()

    def _read_only(self) -> InvalidInputError:
        return InvalidInputError(
            f"broadcast store {self._name!r} is only read: its rows come from {self._origin}; "
            "write there, or keep a store of your own beside it"
        )
