"""Exchange rates: every payment in euros, by a small table that each process holds in full.

    headrace bus append rates rates.jsonl --infer --key currency
    headrace bus append payments payments.jsonl --infer --time at
    headrace run exchange_rates.py
    headrace bus tail euros --follow

It reads the streams ``rates`` and ``payments``. It sends payments with a rate to ``euros``, and
the others to ``unknown``. A new rate applies from the next epoch on.
"""

import datetime
from dataclasses import dataclass

import headrace as hr

RATES = hr.broadcast("rates", stream="rates", key="currency")


@dataclass
class Paid:
    """A payment, with the rate of its currency."""

    id: int
    at: datetime.datetime
    currency: str
    amount: float
    rate: float | None


@dataclass
class Euros:
    """A payment in euros."""

    id: int
    at: datetime.datetime
    euros: float


def in_euros(paid: Paid) -> Euros:
    return Euros(paid.id, paid.at, round(paid.amount * (paid.rate or 0.0), 2))


@hr.job("exchange-rates")
def exchange_rates(g: hr.Graph) -> None:
    paid = g.input("payments", time="at").join_table(RATES, columns=["rate"])
    paid.filter(hr.col("rate").is_not_null()).map(in_euros).send_to(g.output("euros"))
    paid.filter(hr.col("rate").is_null()).send_to(g.output("unknown"))
