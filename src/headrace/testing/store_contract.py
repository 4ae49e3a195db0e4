"""What every state backend must do, as a test class that its author subclasses.

Example:
    >>> class TestMine(StoreContract):
    ...     def open(self, directory, stores=("a", "b"), scope="test"):
    ...         return MyBackend(directory, stores, scope)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import ClosedError, InvalidInputError
from headrace.state.backend import Backend, Position

FIRST, SECOND = Position("line", 1, "d1"), Position("line", 2, "d2")
STORES = ("a", "b")


class StoreContract(ABC):
    """The contract of ``headrace.state.backend.Backend``; pytest runs it through a subclass.

    ``is_durable`` says whether entries survive ``close`` and a new ``open``.
    """

    is_durable = False

    @abstractmethod
    def open(self, directory: Path, stores: Sequence[str] = STORES, scope: str = "test") -> Backend:
        """Return a backend over that directory, which may hold an earlier one's files."""

    def entries(self, backend: Backend, store: str = "a") -> list[tuple[bytes, bytes]]:
        """Return all entries of a store."""
        return list(backend.scan(store))

    def test_a_new_backend_is_empty_and_at_no_position(self, tmp_path: Path) -> None:
        """Nothing is committed before the first apply."""
        backend = self.open(tmp_path)
        assert backend.position is None
        assert backend.get_many("a", [b"k"]) == [None]
        assert self.entries(backend) == []
        assert sum(backend.store_bytes().values()) == 0
        assert not backend.is_damaged
        backend.close()

    def test_apply_sets_deletes_and_moves_the_position(self, tmp_path: Path) -> None:
        """Data and position follow each apply; order of keys asked for is kept."""
        backend = self.open(tmp_path)
        backend.apply({"a": ([b"x", b"y"], [b"1", b""])}, FIRST)
        assert backend.position == FIRST
        assert backend.get_many("a", [b"z", b"y", b"x", b"y"]) == [None, b"", b"1", b""]
        backend.apply({"a": ([b"w", b"x", b"y"], [b"0", None, b"2"])}, SECOND)
        assert backend.position == SECOND
        assert self.entries(backend) == [(b"w", b"0"), (b"y", b"2")]
        assert sum(backend.store_bytes().values()) > 0
        backend.close()

    def test_applying_again_changes_nothing(self, tmp_path: Path) -> None:
        """Redo is idempotent, deletes of what is not there included."""
        backend = self.open(tmp_path)
        for _ in range(2):
            backend.apply({"a": ([b"k", b"none"], [b"v", None])}, FIRST)
            assert self.entries(backend) == [(b"k", b"v")]
        backend.close()

    def test_stores_are_apart(self, tmp_path: Path) -> None:
        """The same key in two stores is two entries, and no scan leaves its store."""
        backend = self.open(tmp_path)
        backend.apply(
            {"a": ([b"\0\0", b"\xff\xff"], [b"1", b"2"]), "b": ([b"\0\0"], [b"3"])}, FIRST
        )
        assert self.entries(backend, "a") == [(b"\0\0", b"1"), (b"\xff\xff", b"2")]
        assert self.entries(backend, "b") == [(b"\0\0", b"3")]
        backend.close()

    def test_an_empty_apply_moves_only_the_position(self, tmp_path: Path) -> None:
        """An epoch that changed nothing is still an epoch."""
        backend = self.open(tmp_path)
        backend.apply({"a": ([b"k"], [b"v"])}, FIRST)
        backend.apply({}, SECOND)
        assert (backend.position, self.entries(backend)) == (SECOND, [(b"k", b"v")])
        backend.close()

    def test_a_partial_load_has_no_position(self, tmp_path: Path) -> None:
        """Loading a snapshot in steps takes the position away until the last one."""
        backend = self.open(tmp_path)
        backend.apply({}, FIRST)
        backend.apply({"a": ([b"k"], [b"v"])}, None)
        partial = backend.position
        backend.apply({}, SECOND)
        assert (partial, backend.position) == (None, SECOND)
        backend.close()

    @pytest.mark.parametrize(
        ("low", "high", "expected"),
        [
            (b"", None, [b"a", b"b", b"b\0", b"c"]),
            (b"b", None, [b"b", b"b\0", b"c"]),
            (b"", b"b", [b"a"]),
            (b"b", b"c", [b"b", b"b\0"]),
            (b"b", b"b", []),
            (b"c", b"a", []),
            (b"d", None, []),
        ],
    )
    def test_a_scan_keeps_to_its_range(
        self, tmp_path: Path, low: bytes, high: bytes | None, expected: list[bytes]
    ) -> None:
        """The low end is in, the high end is out, keys rise."""
        backend = self.open(tmp_path)
        keys = [b"a", b"b", b"b\0", b"c"]
        backend.apply({"a": (keys, [b"v"] * 4), "b": (keys, [b"w"] * 4)}, FIRST)
        assert [key for key, _ in backend.scan("a", low, high)] == expected
        backend.close()

    def test_a_scan_sees_the_data_as_it_was_when_it_began(self, tmp_path: Path) -> None:
        """A snapshot being written is not torn by the next epoch."""
        backend = self.open(tmp_path)
        backend.apply({"a": ([b"1", b"2"], [b"v", b"v"])}, FIRST)
        scan = backend.scan("a")
        assert next(scan) == (b"1", b"v")
        backend.apply({"a": ([b"2", b"3"], [None, b"v"])}, SECOND)
        assert list(scan) == [(b"2", b"v")]
        backend.close()

    @pytest.mark.parametrize("count", [0, 1, 4])
    def test_a_load_fills_an_empty_store(self, tmp_path: Path, count: int) -> None:
        """From columns in batches, of keys of one length or any, slices of others too."""
        backend = self.open(tmp_path)
        backend.apply({"a": ([b"old"], [b"1"])}, FIRST)
        backend.clear()
        expected: list[tuple[bytes, bytes]] = []
        for store in STORES:
            keys = [f"{n:04d}{'x' * (n % 3 if store == 'b' else 1)}".encode() for n in range(90)]
            column, values = pa.array([b"", *keys], pa.binary()), pa.array([None, *keys])
            step = 90 // max(1, count)
            cuts = [(1 + at * step, step) for at in range(count)]
            backend.load(store, [(column.slice(*cut), values.slice(*cut)) for cut in cuts])
            expected = [(key, key) for key in keys[: step * count]]
            assert self.entries(backend, store) == expected
        assert backend.position is None
        assert (sum(backend.store_bytes().values()) > 0) is bool(count)
        backend.apply({"b": ([b"0000", b"9"], [None, b"9"])}, SECOND)
        assert [key for key, _ in self.entries(backend, "b")] == sorted(
            {key for key, _ in expected} - {b"0000"} | {b"9"}
        )
        assert backend.get_many("a", [b"0003x", b"old"])[1] is None
        backend.close()

    def test_clear_forgets_data_and_position(self, tmp_path: Path) -> None:
        """After clear the backend is as new, and works."""
        backend = self.open(tmp_path)
        backend.apply({"a": ([b"k"], [b"v"]), "b": ([b"k"], [b"v"])}, FIRST)
        backend.clear()
        assert backend.position is None
        assert self.entries(backend, "a") + self.entries(backend, "b") == []
        backend.apply({"a": ([b"k"], [b"w"])}, FIRST)
        assert self.entries(backend) == [(b"k", b"w")]
        backend.close()

    def test_a_store_that_was_not_declared_is_refused(self, tmp_path: Path) -> None:
        """A typo must not make a store; the message names those that exist."""
        backend = self.open(tmp_path)
        with pytest.raises(InvalidInputError, match="'a', 'b'"):
            backend.get_many("c", [b"k"])
        with pytest.raises(InvalidInputError, match="'a', 'b'"):
            backend.apply({"c": ([b"k"], [b"v"])}, FIRST)
        with pytest.raises(InvalidInputError, match="'a', 'b'"):
            backend.scan("c")
        assert backend.position is None
        backend.close()

    def test_use_after_close_is_an_error(self, tmp_path: Path) -> None:
        """Closing twice is fine, other use is a mistake of the program."""
        backend = self.open(tmp_path)
        backend.apply({}, FIRST)
        backend.close()
        backend.close()
        for use in (
            lambda: backend.get_many("a", [b"k"]),
            lambda: backend.scan("a"),
            lambda: backend.apply({}, SECOND),
            backend.clear,
        ):
            with pytest.raises(ClosedError, match="closed"):
                use()

    def test_closing_ends_an_open_scan(self, tmp_path: Path) -> None:
        """A forgotten scan must not keep files or locks."""
        backend = self.open(tmp_path)
        backend.apply({"a": ([b"1", b"2"], [b"v", b"v"])}, FIRST)
        scan = backend.scan("a")
        next(scan)
        backend.close()
        again = self.open(tmp_path)
        assert again.position == (FIRST if self.is_durable else None)
        again.close()
        del scan

    def test_what_survives_a_close_is_whole(self, tmp_path: Path) -> None:
        """A durable backend comes back with data and position, another one empty."""
        backend = self.open(tmp_path)
        backend.apply({"a": ([b"k"], [b"v"]), "b": ([b"k"], [b"w"])}, FIRST)
        backend.flush()
        backend.close()
        again = self.open(tmp_path)
        expected = (FIRST, [(b"k", b"v")], [(b"k", b"w")]) if self.is_durable else (None, [], [])
        assert (again.position, self.entries(again), self.entries(again, "b")) == expected
        again.close()

    @pytest.mark.parametrize(
        ("stores", "scope"), [(("a", "b"), "other"), (("b", "a"), "test"), (("a",), "test")]
    )
    def test_data_of_another_scope_is_thrown_away(
        self, tmp_path: Path, stores: tuple[str, ...], scope: str
    ) -> None:
        """Entries of other key groups or other stores are never taken for one's own."""
        backend = self.open(tmp_path)
        backend.apply({"a": ([b"k"], [b"v"])}, FIRST)
        backend.close()
        again = self.open(tmp_path, stores, scope)
        assert again.position is None
        assert self.entries(again) == []
        again.close()
