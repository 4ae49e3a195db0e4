"""The four apps of ``examples/trending``: killed one after the other, they rank as in a batch."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.homes import Home
from tests.support.processes import MODULES, ROOT

APPS = ROOT / "examples" / "trending"
JOBS = ("filterer", "joiner", "scorer", "top_events")
TOPS = "top_events.top_events_5min"
MINUTE, FIVE = 60_000, 300_000
MINUTES, PER_MINUTE = 13, 50
Ranking = dict[tuple[int, str], list[tuple[str, float]]]


def run(home: Path, *words: str) -> str:
    """Run the example; return what it prints."""
    command = [sys.executable, str(APPS / "run.py"), "--home", str(home)]
    command += ["--minutes", str(MINUTES), "--per-minute", str(PER_MINUTE), *words]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
    environment["PYTHONPATH"] = MODULES
    ran = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, timeout=240
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def ranked(home: Path, end: int) -> Ranking:
    """What the Ranker has sent for the windows up to an end: events and scores, the best first."""
    found: Ranking = defaultdict(list)
    for row in Home(home).rows(TOPS):
        if (begin := _ms(row["window_start"])) + FIVE <= end:
            found[begin, row["category"]].append((row["event"], row["score"]))
    return _sorted(found)


def _ms(value: Any) -> int:
    return value if isinstance(value, int) else round(value.timestamp() * 1000)


def _sorted(found: Ranking) -> Ranking:
    return {
        key: sorted(events, key=lambda one: (-one[1], one[0]))[:10] for key, events in found.items()
    }


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(APPS))
    yield importlib.import_module("recording")
    for name in ("recording", "joiner", "scorer"):
        sys.modules.pop(name, None)


def calculated(recording: Any, end: int) -> Ranking:
    """The same from the events alone: for each minute, the last five against those before."""
    words = {word: topic for topic, known in recording.WORDS.items() for word in known}
    counts: dict[tuple[str, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for rows in recording.recorded(MINUTES, PER_MINUTE):
        for row in rows:
            if row["type"] != "post":
                continue
            [topic] = {words[word] for word in row["text"].split() if word in words}
            language = recording.DIMENSIONS.get(row["dimension"], "unknown")
            counts[row["event"], f"{topic} in {language}"][row["at"] // MINUTE] += 1
    best: dict[tuple[int, str], dict[str, float]] = defaultdict(dict)
    for (event, topic), minutes in counts.items():
        trend = 0.0
        for minute in range(min(minutes), max(minutes) + 5):
            recent = sum(minutes.get(one, 0) for one in range(minute - 4, minute + 1))
            at = minute * MINUTE // FIVE * FIVE
            if recent and at + FIVE <= end:
                score = recent / (1 + 5 * trend)
                best[at, topic][event] = max(best[at, topic].get(event, 0.0), score)
            trend = 0.9 * trend + 0.1 * minutes.get(minute - 4, 0)
            trend = trend if trend >= 0.05 else 0.0
    return _sorted({key: [*events.items()] for key, events in best.items()})


def test_apps_that_are_killed_rank_as_in_a_batch_and_as_calculated(
    tmp_path: Path, recording: Any
) -> None:
    """Each is killed while the recording is played, and started again."""
    stages = ("filterer", "joiner", "scorer", "ranker")
    kills = [word for stage in (*stages, "dimensions") for word in ("--kill", stage)]
    shown = run(tmp_path / "stream", *kills)
    in_batch = run(tmp_path / "batch", "--batch")

    end = recording.BEGIN + (MINUTES - 3) * MINUTE
    expected = calculated(recording, end)
    assert len(expected) > 20
    assert ranked(tmp_path / "batch", end) == expected
    assert ranked(tmp_path / "stream", end) == expected
    assert shown == in_batch
    assert re.findall(r"^\d\d:\d\d$", shown, re.M) == ["22:15", "22:20"]
    for job in JOBS:
        state = Home(tmp_path / "stream").state(job)
        assert (state.generation, state.counts.get("late", 0)) == (3, 0), job
