"""Notes which test reached which place of the code, in this process and in all that it starts.

``mutants.py`` puts a copy of this beside the packages of a copy of the tree, with a call of ``hit``
before each place that it wants to know of. Loaded into pytest as a plugin it says which test runs,
and writes down what became of each.

A module that imports it finds the number of the test that runs in a file that all of them map.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[1] / ".reach"
NOW, HITS, TESTS = FOLDER / "now", FOLDER / "hits", FOLDER / "tests"
_NUMBER = struct.Struct("<q")
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


def _mapped() -> mmap.mmap | None:
    try:
        with NOW.open("r+b") as file:
            return mmap.mmap(file.fileno(), _NUMBER.size)
    except OSError:  # nobody records
        return None


_now = _mapped()
_seen: set[tuple[int, int]] = set()


def hit(place: int) -> None:
    """Note that a place is reached by the test that runs now."""
    if _now is None:
        return
    (test,) = _NUMBER.unpack_from(_now)
    if not test or (test, place) in _seen:
        return
    _seen.add((test, place))
    _write(HITS, [test, place])


def _write(path: Path, value: Any) -> None:
    # Opened each time: a process that was forked may have closed what it did not know of.
    file = os.open(path, _APPEND, 0o600)
    try:
        os.write(file, json.dumps(value).encode() + b"\n")
    finally:
        os.close(file)


class Recording:
    """Numbers tests, and fixtures that several of them share, as they begin."""

    def __init__(self, first: int) -> None:
        self._last = first
        self._test: dict[str, Any] = {}

    def _turn_to(self, number: int) -> None:
        assert _now is not None
        _NUMBER.pack_into(_now, 0, number)

    def _numbered(self) -> int:
        self._last += 1
        return self._last

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Let a test have a number, and write down what became of it."""
        shared = [
            f"{one.baseid}::{one.argname}"
            for same in getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009
            for one in same
            if one.scope != "function"
        ]
        number = self._numbered()
        self._test = {
            "number": number,
            "id": item.nodeid,
            "shared": shared,
            "seconds": 0.0,
            "outcome": "passed",
        }
        self._turn_to(number)
        try:
            return (yield)
        finally:
            self._turn_to(0)
            _write(TESTS, self._test)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[Any]:
        """Count what a shared fixture reaches for all tests that use it."""
        if fixturedef.scope == "function":
            return (yield)
        number, before = self._numbered(), self._test.get("number", 0)
        self._turn_to(number)
        try:
            return (yield)
        finally:
            self._turn_to(before)
            _write(
                TESTS, {"number": number, "fixture": f"{fixturedef.baseid}::{fixturedef.argname}"}
            )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up the seconds of a test; it passed where all of its parts did."""
        self._test["seconds"] += report.duration
        if report.outcome != "passed":
            self._test["outcome"] = report.outcome


class Failures:
    """Writes down which tests failed, and how."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Have Hypothesis end with the first example that fails: a smaller one tells no more.

        To look for it takes minutes, in which a fault would pass for undecided.
        """
        from hypothesis import Phase, settings  # noqa: PLC0415 - callers of hit do not need it

        phases = (Phase.explicit, Phase.reuse, Phase.generate)
        settings.register_profile("unshrunk", settings.default, phases=phases)
        settings.load_profile("unshrunk")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = str(report.longrepr) if crash is None else crash.message
            _write(self._path, {"id": report.nodeid, "said": said.strip()[:300]})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be imported."""
        if report.failed:
            _write(self._path, {"id": report.nodeid, "said": str(report.longrepr).strip()[-300:]})


def pytest_configure(config: pytest.Config) -> None:
    """Record, or report, as the environment says."""
    if "MUTANTS_RECORD" in os.environ:
        config.pluginmanager.register(Recording(int(os.environ["MUTANTS_RECORD"])))
    if "MUTANTS_REPORT" in os.environ:
        config.pluginmanager.register(Failures(Path(os.environ["MUTANTS_REPORT"])))
