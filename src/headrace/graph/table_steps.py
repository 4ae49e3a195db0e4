"""``table``: a stream as the last row of each key."""

from __future__ import annotations

from typing import Self

from headrace.graph.durations import Duration
from headrace.graph.kept_tables import Table, keep
from headrace.graph.steps import Steps


class TableSteps(Steps):
    """``table``."""

    def table(self, *, history: Duration | None = None, name: str | None = None) -> Table[Self]:
        """Keep the last row of each key, to be joined with streams and other tables.

        The last in the order of reading counts. A row in which all columns but the key and the
        event time are null deletes its key; one with null in its key is passed over. Inputs that
        it is made of are read to the ends they have when the job begins before any other.

        Args:
            history: keep versions by event time, for ``join(as_of="event")``, and how far behind
                the watermark rows of a stream may be that still find theirs.
            name: of the operator; its rows are kept by it.
        """
        return Table(keep(self, history, name), is_kept=True, history=history)
