"""An epoch that was recorded runs again: the same rows, the same state, the same error."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.changes import record

import headrace as hr
from headrace.errors import CorruptDataError, InvalidInputError, UserFunctionError
from headrace.testing import TestDriver

COLUMNS = {"user": pa.string(), "amount": pa.int64(), "at": pa.int64()}


class Budget:
    """Sums per user; does not know what to do with a debt."""

    def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("spent")
        total = store.get(message.user, 0) + message.amount
        if total < 0:
            raise ZeroDivisionError(f"{message.user} owes {-total}")
        store.put(message.user, total)
        context.emit({"user": message.user, "total": total})
        context.set_timer(context.wall_ms + 60_000, wall=True)

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
        context.emit({"user": timer.key, "total": -1})


class Patient(Budget):
    """Lets debts be."""

    def process(self, message: Any, context: hr.Context) -> None:
        if message.amount >= 0:
            super().process(message, context)


def make_job(processor: type[Budget]) -> Any:
    @hr.job("budget")
    def made(g: hr.Graph) -> None:
        payments = g.input("payments", time="at", out_of_orderness="1s", idle="20s").partition_by(
            "user"
        )
        payments.process(
            processor,
            stores=[hr.store("spent", int, "memory")],
            returns={"user": str, "total": int},
            name="budget",
        ).send_to(g.output("totals"))
        payments.window(hr.tumbling("10s"), name="w", n=hr.agg.count()).send_to(g.output("windows"))

    return made


budget = make_job(Budget)


def pay(user: str | None, amount: int, at: int = 0) -> dict[str, Any]:
    return {"user": user, "amount": amount, "at": at}


def filled(**options: Any) -> TestDriver:
    driver = TestDriver(budget, tasks=3, slots=2, **options)
    driver.create("payments", COLUMNS, partitions=2, time="at", key=["user"])
    return driver


def look(driver: TestDriver) -> dict[str, Any]:
    return {
        "spent": driver.store("spent"),
        "open": driver.windows("w"),
        "timers": driver.timers("budget"),
        "watermarks": driver.watermarks,
        "counts": driver.counts,
    }


def results(driver: TestDriver) -> Counter[str]:
    return Counter(str(row) for name in ("totals", "windows") for row in driver.output(name))


def test_every_epoch_of_a_job_runs_again_as_it_did(tmp_path: Path) -> None:
    with filled(max_rows=7) as driver:
        seen: list[tuple[dict[str, Any], Counter[str]]] = []
        before = Counter[str]()
        for step in range(9):
            driver.clock.advance(15_000)
            rows = [pay("abcdef"[n % 6], n, step * 4_000 + n * 300) for n in range(step % 5 * 3)]
            driver.feed("payments", rows, partition=0 if step in (5, 6, 7) else None)
            while (summary := driver.advance()) is not None:
                sent = results(driver)
                seen.append((look(driver), sent - before))
                before = sent
                assert summary.epoch == len(seen)
        assert sum("window_start" in row for row in before) > 5
        assert sum("-1" in row for row in before) > 2
        for epoch, (expected, sent) in enumerate(seen, 1):
            recording = record(driver, tmp_path / "epoch", epoch)
            assert (recording.kind, recording.epoch) == ("committed", epoch)
            with TestDriver.replay(budget, tmp_path / "epoch") as replay:
                summary = replay.advance()
                assert summary is not None
                assert summary.epoch == epoch
                assert look(replay) == expected
                assert results(replay) == sent
                assert replay.advance() is None
                assert replay.run() == 0


def test_an_epoch_that_fails_fails_again_until_the_code_is_right(tmp_path: Path) -> None:
    with filled() as driver:
        driver.feed("payments", [pay("ann", 3), pay("bob", 4)])
        driver.run()
        driver.feed("payments", [pay("cy", 1), pay("ann", -5), pay("bob", 2)])
        with pytest.raises(UserFunctionError) as first:
            driver.advance()
        driver.feed("payments", [pay(user, 1) for user in "defgh"])  # came later
        recording = record(driver, tmp_path / "failed")
    assert recording.kind == "failed"
    assert recording.epoch == 2
    assert recording.rows == 3
    assert recording.failure is not None
    assert "ann owes 2" in recording.failure.message
    with TestDriver.replay(budget, tmp_path / "failed") as replay:
        for _ in range(2):
            with pytest.raises(UserFunctionError) as again:
                replay.advance()
            assert str(again.value) == str(first.value)
        assert "ann owes 2" in again.value.__notes__[0]
        assert "test_replay.py" in again.value.__notes__[0]
        assert replay.store("spent") == {"ann": 3, "bob": 4}

    with TestDriver.replay(make_job(Patient), tmp_path / "failed") as replay:
        replay.advance()
        assert replay.store("spent") == {"ann": 3, "bob": 6, "cy": 1}
        assert replay.counts["in"] == 5


def test_an_old_failure_does_not_pass_for_the_next_epoch(tmp_path: Path) -> None:
    home = {"home": tmp_path / "home", "memory_bus": False}
    with filled(**home) as driver:
        driver.feed("payments", [pay("ann", -5)])
        with pytest.raises(UserFunctionError):
            driver.advance()
        assert record(driver, tmp_path / "x").kind == "failed"
    with TestDriver(make_job(Patient), tasks=3, **home) as driver:  # type: ignore[arg-type]
        driver.run()
        driver.feed("payments", [pay("zoe", 1)])
        found = record(driver, tmp_path / "x")
        assert (found.kind, found.epoch, found.rows) == ("next", 2, 1)


def test_the_next_epoch_is_recorded_where_none_has_failed(tmp_path: Path) -> None:
    with filled() as driver:
        driver.feed("payments", [pay("ann", 3)])
        driver.run()
        driver.feed("payments", [pay("ann", 4)])
        recording = record(driver, tmp_path / "next", 2)
        assert recording.kind == "next"
        with TestDriver.replay(budget, tmp_path / "next") as replay:
            replay.advance()
            assert replay.store("spent") == {"ann": 7}
        assert driver.store("spent") == {"ann": 3}


def test_only_the_tasks_that_are_wanted(tmp_path: Path) -> None:
    with filled() as driver:
        driver.feed("payments", [pay(user, 1) for user in "abcdefgh"])
        driver.run()
        driver.feed("payments", [pay(user, 2) for user in "abcdefgh"])
        driver.run()
        whole = record(driver, tmp_path / "whole", 2)
        name = next(iter(whole.state.tasks))
        part = record(driver, tmp_path / "part", 2, (name,))
        assert set(part.state.tasks) == {name}
        with TestDriver.replay(budget, tmp_path / "part") as replay:
            replay.advance()
            spent = replay.store("spent")
        assert 0 < len(spent) < 8
        assert set(spent.values()) == {3}
        with pytest.raises(InvalidInputError, match="has no task 'nothing/1'; it has payments"):
            record(driver, tmp_path / "part", 2, ("nothing/1",))


def test_what_cannot_be_recorded_is_told(tmp_path: Path) -> None:
    with filled(keep_epochs=2) as driver:
        for amount in range(6):
            driver.feed("payments", [pay("ann", amount)])
            driver.run()
        with pytest.raises(InvalidInputError, match=r"epoch 2 .* epochs 5 to 7 can be"):
            record(driver, tmp_path / "x", 2)
        with pytest.raises(InvalidInputError, match=r"epoch 9 .* not there yet.*--epoch 7"):
            record(driver, tmp_path / "x", 9)
        with pytest.raises(InvalidInputError, match="no folder"):
            record(driver, tmp_path / "nowhere" / "x")
        stream = driver.bus.stream("payments")
        for partition, end in enumerate(stream.ends()):
            stream.trim(partition, end)
        with pytest.raises(InvalidInputError, match=r"read stream 'payments' .* begins at offset"):
            record(driver, tmp_path / "x", 6)
        driver.coordinator.rescale(2)
        with pytest.raises(InvalidInputError, match=r"epoch 7 .* ran no task"):
            record(driver, tmp_path / "x", 7)
        driver.finish()
        with pytest.raises(InvalidInputError, match="has ended"):
            record(driver, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_damage_anywhere_is_found(tmp_path: Path) -> None:
    with filled() as driver:
        for amount in range(3):
            driver.feed("payments", [pay(user, amount) for user in "abc"])
            driver.run()
        path = tmp_path / "whole"
        record(driver, path, 3)
    whole = path.read_bytes()
    damaged = tmp_path / "damaged"
    found: list[str] = []
    for at in range(0, len(whole), 97):
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            with TestDriver.replay(budget, damaged) as replay:  # what no reader looks at
                replay.advance()
                assert replay.store("spent") == {"a": 3, "b": 3, "c": 3}
        except CorruptDataError as error:
            found.append(str(error))
    assert len(found) > 50
    assert all("damaged" in text for text in found)
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        damaged.write_bytes(whole[:size])
        with pytest.raises(CorruptDataError, match="record the epoch again"):
            TestDriver.replay(budget, damaged)
    with pytest.raises(InvalidInputError, match="no recording"):
        TestDriver.replay(budget, tmp_path / "nothing")


def test_a_recording_is_of_one_job(tmp_path: Path) -> None:
    @hr.job("other")
    def other(g: hr.Graph) -> None:
        g.input("payments").send_to(g.output("copies"))

    with filled() as driver:
        driver.feed("payments", [pay("ann", 3)])
        driver.run()
        record(driver, tmp_path / "x", 1)
    with pytest.raises(InvalidInputError, match="recorded of job 'budget'; found 'other'"):
        TestDriver.replay(other, tmp_path / "x")
