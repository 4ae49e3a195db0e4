"""The bus contract for the memory bus."""

from pathlib import Path

from headrace.bus import Bus, BusOptions, MemoryBus
from headrace.testing.bus_contract import BusContract


class TestMemoryBus(BusContract):
    def open_bus(self, folder: Path, options: BusOptions) -> Bus:
        return MemoryBus(options)

    def reopen(self, bus: Bus, folder: Path, options: BusOptions) -> Bus:
        return bus
