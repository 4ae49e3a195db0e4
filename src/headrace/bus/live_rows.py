"""Rows of a stream that are shown while they come; ``StreamRows.live`` makes them.

Only what is committed is in a stream, so that is what is shown. A notebook of Jupyter refreshes
by a thread of its own; elsewhere, ``refresh`` does.
"""

from __future__ import annotations

import html
import importlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import polars as pl
import pyarrow as pa

from headrace.errors import HeadraceError

MERGED_ROWS = 200_000
"""So many new rows are held before only the newest of each key is kept."""

Tail = Callable[[dict[int, int], int | None], Iterable[pa.RecordBatch]]
"""Reads what is behind the offsets, and moves them; of each partition the last so many rows."""


class LiveRows:
    """The newest rows of a stream, or the newest row of each key; made by ``StreamRows.live``.

    As the last line of a cell in Jupyter, it is a table that is refreshed until ``stop``. If the
    same rows are shown again, as when the cell is run again, the former table stops. In marimo, and
    in scripts, call ``refresh`` for each look.

    Args:
        name: of the stream.
        tail: reads what is new.
        schema: of the rows.
        key: columns of the key; empty: all rows are shown.
        rows: how many are shown.
        every_s: seconds between two looks.
        what: names what is shown, so that it is not refreshed twice.
    """

    _shown: ClassVar[WeakValueDictionary[tuple[object, ...], LiveRows]] = WeakValueDictionary()

    def __init__(
        self,
        name: str,
        tail: Tail,
        schema: pa.Schema,
        *,
        key: Sequence[str],
        rows: int,
        every_s: float,
        what: tuple[object, ...],
    ) -> None:
        self.name = name
        self._tail, self._key, self._rows, self._every_s = tail, list(key), rows, every_s
        self._what = what
        self._frame = _polars([], schema)
        self._schema = schema
        self._offsets: dict[int, int] = {}
        self._problem: str | None = None
        self._refreshing, self._over = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._handles: list[Any] = []

    @property
    def frame(self) -> pl.DataFrame:
        """The rows as of the last refresh, the newest last: all keys, or the last ``rows`` rows."""
        return self._frame

    @property
    def is_live(self) -> bool:
        """Whether a thread refreshes it."""
        return self._thread is not None and self._thread.is_alive()

    def refresh(self) -> bool:
        """Read what has been committed since the last refresh; return whether there was anything.

        You can call it from any thread.

        Raises:
            HeadraceError: the stream is gone, or does not answer; the rows stay as they are.
        """
        with self._refreshing:
            offsets = dict(self._offsets)
            frame, held, new = self._frame, [], 0
            for batch in self._tail(offsets, None if self._key else self._rows):
                held.append(batch)
                new += batch.num_rows
                if sum(one.num_rows for one in held) >= MERGED_ROWS:
                    frame, held = self._merged(frame, held), []
            self._frame, self._offsets = self._merged(frame, held), offsets
            self._problem = None
            return new > 0

    def stop(self) -> None:
        """Refresh a last time, and no more; you can call it twice."""
        self._over.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
            self._look()

    def _merged(self, frame: pl.DataFrame, batches: list[pa.RecordBatch]) -> pl.DataFrame:
        if not batches:
            return frame
        every = pl.concat([frame, _polars(batches, self._schema)])
        if not self._key:
            return every.tail(self._rows)
        return every.unique(subset=self._key, keep="last", maintain_order=True)

    def _follow(self) -> None:
        while not self._over.wait(self._every_s):
            self._look()

    def _look(self) -> None:
        """Refresh, and show it if anything is new; what goes wrong is shown, and tried again."""
        before = self._problem
        try:
            is_new = self.refresh()
        except (HeadraceError, OSError) as error:
            is_new, self._problem = False, str(error)
        if is_new or self._problem != before or self._over.is_set():
            for handle in self._handles:
                handle.update(self._repr_mimebundle_(), raw=True)

    def __repr__(self) -> str:
        """Return the name of the stream, and how many rows there are."""
        return f"<{self._summary()}>"

    def _repr_html_(self) -> str:
        """Return the newest rows as a table, the newest first."""
        shown = self._frame.tail(self._rows).reverse()
        with pl.Config(tbl_rows=self._rows, tbl_hide_dataframe_shape=True):
            table = shown._repr_html_()
        return f"<div>{html.escape(self._summary())}</div>{table}"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def _ipython_display_(self) -> None:
        """Show the table, and refresh it from now on if this is a notebook."""
        shell = importlib.import_module("IPython").get_ipython()
        if getattr(shell, "kernel", None) is None:  # a terminal cannot change what it has shown
            print(repr(self))
            return
        former = self._shown.get(self._what)
        if former is not None and former is not self:
            former.stop()
        self._shown[self._what] = self
        display = importlib.import_module("IPython.display").display
        self._handles.append(display(self._repr_mimebundle_(), raw=True, display_id=True))
        if not self.is_live:
            self._over.clear()
            name = f"headrace live {self.name}"
            self._thread = threading.Thread(target=self._follow, name=name, daemon=True)
            self._thread.start()

    def _summary(self) -> str:
        count = self._frame.height
        found = f"{count:,} keys" if self._key else f"the newest {count:,} rows"
        state = ", live" if self.is_live else ""
        problem = "" if self._problem is None else f"; {self._problem}"
        return f"{found} of stream {self.name!r}{state}{problem}"


def _polars(batches: list[pa.RecordBatch], schema: pa.Schema) -> pl.DataFrame:
    found = pl.from_arrow(pa.Table.from_batches(batches, schema))
    assert isinstance(found, pl.DataFrame)
    return found
