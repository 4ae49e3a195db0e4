"""The bus contract for the file bus, with and without syncs, and with tiny files."""

from pathlib import Path

from headrace.bus import Bus, BusOptions, FileBus, Fsync
from headrace.clock import Clock
from headrace.testing.bus_contract import BusContract


class TestFileBus(BusContract):
    def open_bus(self, folder: Path, options: BusOptions, clock: Clock | None = None) -> Bus:
        return FileBus(folder, options, clock=clock)

    def reopen(
        self, bus: Bus, folder: Path, options: BusOptions, clock: Clock | None = None
    ) -> Bus:
        bus.close()
        return FileBus(folder, options, clock=clock)


class TestFileBusOfTinyFiles(TestFileBus):
    """Every append begins a segment, every third an index file, and files are closed at once."""

    options = BusOptions(
        fsync=Fsync.INTERVAL,
        fsync_interval_ms=1,
        segment_bytes=1,
        index_entries=3,
        open_partitions=1,
        open_segments=1,
        batch_bytes=100_000,
        record_bytes=20_000,
        adopt_bytes=4096,
    )
