"""The bus contract for the memory bus."""

from pathlib import Path

from headrace.bus import Bus, BusOptions, MemoryBus
from headrace.clock import Clock
from headrace.testing.bus_contract import BusContract


class TestMemoryBus(BusContract):
    def open_bus(self, folder: Path, options: BusOptions, clock: Clock | None = None) -> Bus:
        return MemoryBus(options, clock=clock)

    def reopen(
        self, bus: Bus, folder: Path, options: BusOptions, clock: Clock | None = None
    ) -> Bus:
        return bus
