"""``in_order``: rows by event time."""

from __future__ import annotations

from typing import Self

from headrace.graph.operators import COLUMNAR, Operator, StoreSpec
from headrace.graph.ordering import LATE_WAYS, InOrder
from headrace.graph.sites import user_site
from headrace.graph.steps import Steps
from headrace.graph.windows import LATE_SIDE


class OrderSteps(Steps):
    """``in_order``."""

    def in_order(self, *, late: str = "drop", name: str | None = None) -> Self:
        """Pass rows on by event time, each when the watermark has passed it.

        What follows sees the rows of a key in one order, whatever partitions they come from and
        however they fall into epochs: by event time; of equal times, those of one partition in
        their own order. Costs the wait, and a table of the rows that wait.

        Args:
            late: ``drop``: rows behind the watermark of their own partition are counted.
                ``side_output``: they are also sent to the side ``late`` of the result, as they
                came.
            name: of the operator; the rows that wait are kept by it.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            if not self.keys:
                wrong.append("in_order keeps rows by their key: put partition_by before it")
            if late not in LATE_WAYS:
                wrong.append(f"in_order(late={late!r}); expected one of {LATE_WAYS}")
            self._ledger.claim_stores(wrong, chosen, [chosen])
            spec = StoreSpec(chosen, COLUMNAR, ttl_ms=1)
            return InOrder(chosen, (self.name,), site, late, spec)

        made = self._add("in_order", name, make, self.keys)
        if late == LATE_WAYS[1]:
            made._sides[LATE_SIDE] = made._port(LATE_SIDE, site)  # noqa: SLF001 - of the same class
        return made
