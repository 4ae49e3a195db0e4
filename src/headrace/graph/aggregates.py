"""Aggregates as monoids: a partial result, how two combine, and what is shown.

Placeholder of the interface; concrete aggregates follow in this module.
"""

from __future__ import annotations

from abc import ABC


class Aggregate(ABC):
    """A monoid over messages, with a vectorised form."""
