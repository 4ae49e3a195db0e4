"""What every bus must do, as tests. Subclass ``BusContract`` and say how to open yours."""

from __future__ import annotations

from headrace.testing.appending_contract import AppendingContract
from headrace.testing.changing_contract import ChangingContract
from headrace.testing.compaction_contract import CompactionContract
from headrace.testing.evolution_contract import EvolutionContract
from headrace.testing.reading_contract import ReadingContract


class BusContract(
    AppendingContract, ReadingContract, ChangingContract, EvolutionContract, CompactionContract
):
    """The contract of a bus; subclasses give ``open_bus`` and ``reopen``."""
