"""The task runtime: operators on Arrow batches, timers, exchange files, one slot's epoch."""

from __future__ import annotations
