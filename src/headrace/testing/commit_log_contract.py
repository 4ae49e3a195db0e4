"""What every commit log must do, as a test class that its author subclasses.

Races are run between processes. ``location`` is what a process needs to open the log, and
``opener`` the function that does so, by its import path, so that another process finds it: it loads
that module, and starts the sooner the less this imports.

Example:
    >>> class TestMine(CommitLogContract):
    ...     opener = "mypackage.logs:open_log"
    ...     def location(self, tmp_path):
    ...         return str(tmp_path)
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import pytest

from headrace.coordinator.commit_log import CommitLog
from headrace.errors import CorruptDataError

RACERS = 3
ROUNDS = 8
BLOB_LINES = 500
TIMEOUT_S = 120


class CommitLogContract(ABC):
    """The contract of ``headrace.coordinator.commit_log.CommitLog``."""

    opener: ClassVar[str]
    environment: Mapping[str, str] = MappingProxyType({})
    """Variables that other processes need to open it, such as logins."""

    @abstractmethod
    def location(self, tmp_path: Path) -> str:
        """Return where a log of this test's own is kept; opened many times, by many processes."""

    def open(self, tmp_path: Path) -> CommitLog:
        """Return the log."""
        return open_log(self.opener, self.location(tmp_path))

    def test_a_new_log_is_empty(self, tmp_path: Path) -> None:
        """No epoch, no generation."""
        log = self.open(tmp_path)
        assert log.epochs() == []
        assert log.newest_generation() == (0, {})

    def test_what_is_published_is_there_for_everybody(self, tmp_path: Path) -> None:
        """The bytes come back as they went, through another instance as well."""
        data = bytes(range(256)) * 40
        assert self.open(tmp_path).publish(0, data)
        assert self.open(tmp_path).publish(1, b"")
        log = self.open(tmp_path)
        assert log.epochs() == [0, 1]
        assert (log.read(0), log.read(1)) == (data, b"")

    def test_an_epoch_is_created_once(self, tmp_path: Path) -> None:
        """A second create answers false and changes nothing, with the same bytes, too."""
        log = self.open(tmp_path)
        assert log.publish(5, b"first")
        for data in (b"second", b"first"):
            assert not self.open(tmp_path).publish(5, data)
        assert (log.epochs(), log.read(5)) == ([5], b"first")

    def test_what_is_not_there_is_damage(self, tmp_path: Path) -> None:
        """An epoch that should be readable and is not names itself."""
        log = self.open(tmp_path)
        log.publish(1, b"x")
        with pytest.raises(CorruptDataError, match="epoch 2"):
            log.read(2)

    def test_epochs_rise_by_number_not_by_name(self, tmp_path: Path) -> None:
        """Nine comes before ten."""
        log = self.open(tmp_path)
        for epoch in (9, 10, 100, 1_000_000):
            assert log.publish(epoch, b"x")
        assert log.epochs() == [9, 10, 100, 1_000_000]

    def test_prune_takes_the_old_and_leaves_the_newest(self, tmp_path: Path) -> None:
        """The newest one stays whatever is asked for."""
        log = self.open(tmp_path)
        for epoch in range(5):
            log.publish(epoch, b"x")
        log.prune(3)
        assert log.epochs() == [3, 4]
        log.prune(3)
        log.prune(1000)
        assert log.epochs() == [4]

    def test_a_late_create_of_a_pruned_epoch_loses(self, tmp_path: Path) -> None:
        """A zombie that comes back after its epoch was pruned must not win it."""
        log = self.open(tmp_path)
        for epoch in range(4):
            log.publish(epoch, b"x")
        log.prune(3)
        assert not log.publish(1, b"late")
        assert log.epochs() == [3]
        with pytest.raises(CorruptDataError):
            log.read(1)

    def test_generations_rise_and_name_their_holder(self, tmp_path: Path) -> None:
        """Each is above all before it; the newest one says who took it."""
        log = self.open(tmp_path)
        taken = [
            self.open(tmp_path).take_generation({"process": n, "host": "h"}) for n in range(30)
        ]
        assert taken == list(range(1, 31))
        assert log.newest_generation() == (30, {"process": 29, "host": "h"})

    def test_of_racing_processes_one_wins_each_epoch_and_generation(self, tmp_path: Path) -> None:
        """All create the same epochs at the same time, then take generations: no two win one."""
        answers = self._race(tmp_path)
        log = self.open(tmp_path)
        assert log.epochs() == list(range(ROUNDS))
        for epoch in range(ROUNDS):
            winners = [racer for racer, (won, _) in enumerate(answers) if won[epoch]]
            assert len(winners) == 1
            assert log.read(epoch) == _blob(winners[0], epoch)
        assert all(taken == sorted(taken) for _, taken in answers)
        every = sorted(number for _, taken in answers for number in taken)
        assert every == list(range(1, RACERS * ROUNDS + 1))
        number, holder = log.newest_generation()
        assert number == RACERS * ROUNDS
        assert number in answers[int(holder["process"])][1]

    def _race(self, tmp_path: Path) -> list[tuple[list[int], list[int]]]:
        """Return which epochs each process won, and the generations that it took."""
        location = self.location(tmp_path)
        command = [sys.executable, "-c", _RACER, *self.opener.split(":"), location]
        racers = [
            subprocess.Popen(
                [*command, str(racer)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={
                    "PYTHONPATH": ":".join(path for path in sys.path if path),
                    **self.environment,
                },
            )
            for racer in range(RACERS)
        ]
        try:
            for racer in racers:
                assert racer.stdout is not None
                assert racer.stdout.readline() == "ready\n"
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write("go\n")
                racer.stdin.flush()
            answers = [racer.communicate(timeout=TIMEOUT_S)[0] for racer in racers]
        finally:
            for racer in racers:
                racer.kill()
                racer.wait(TIMEOUT_S)
        return [json.loads(answer) for answer in answers]


def open_log(opener: str, location: str) -> CommitLog:
    """Open a log by the import path of the function that does so."""
    module, _, function = opener.partition(":")
    log: CommitLog = getattr(importlib.import_module(module), function)(location)
    return log


def _blob(racer: int, epoch: int) -> bytes:
    return f"{racer} {epoch} ".encode() * BLOB_LINES


_RACER = f"""
import importlib, json, sys

module, function, location, racer = sys.argv[1:]
log = getattr(importlib.import_module(module), function)(location)
print("ready", flush=True)
sys.stdin.readline()
blobs = [f"{{racer}} {{epoch}} ".encode() * {BLOB_LINES} for epoch in range({ROUNDS})]
won = [int(log.publish(epoch, blob)) for epoch, blob in enumerate(blobs)]
taken = [log.take_generation({{"process": int(racer)}}) for _ in blobs]
print(json.dumps([won, taken]))
"""
"""What a process runs: it does not load this module, whose imports take longer than the race."""
