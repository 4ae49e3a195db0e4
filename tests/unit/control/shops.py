"""A job whose driver is looked at and asked."""

from __future__ import annotations

from tests.support.homes import Files

import headrace as hr

FILES = Files(sync=False)


@hr.job("shop")
def shop(g: hr.Graph) -> None:
    orders = g.input("orders", time="at").partition_by("user")
    orders.aggregate(spent=hr.agg.sum("n")).send_to(g.output("totals"))
