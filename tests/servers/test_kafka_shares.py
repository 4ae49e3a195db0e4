"""Large epochs of several files: slots send them, each file as a share of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.kafka import KafkaServer, Topics, TopicSinkContract
from tests.support.processes import SystemClock, until

import headrace as hr
from headrace import Job
from headrace.errors import NotOwnerError
from headrace.files import Files
from headrace.sinks import Receiver, Sink, SinkEpoch, SinkSite
from headrace.testing import TestDriver
from headrace.testing.sink_contract import SINK_SCHEMA, EpochSinkContract, SinkRow, named


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"shared{abs(hash(request.node.nodeid))}"


class TestSharedTopicSink(TopicSinkContract):
    """The contract, where each file of an epoch is a share, which the driver sends itself."""

    @pytest.fixture(autouse=True)
    def shared_from_the_first_row(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headrace.kafka.sink.SHARED_MESSAGES", 1)

    def epoch(
        self, sink: Sink, number: int, *files: Sequence[SinkRow], lineage: str = "one"
    ) -> SinkEpoch:
        halves = [half for rows in files for half in (rows[:1], rows[1:])]
        return super().epoch(sink, number, *halves, lineage=lineage)

    def shared(self, sink: Sink, share: int, generation: int) -> Receiver:
        """What a slot opens for a driver of a generation."""
        clock, files = SystemClock(), Files(sync=False)
        site = SinkSite("job", "out", SINK_SCHEMA, clock, files, generation, "origin")
        return sink.open_share(site, share)

    def test_what_slots_have_sent_the_driver_does_not_send_again(self, sink: Sink) -> None:
        """All shares or some; it may be the next driver that sends the rest."""
        driver = self.opened(sink, 1)
        first, second = self.epoch(sink, 1, named(0, 4)), self.epoch(sink, 2, named(4, 4))
        for epoch, shares in ((first, (0, 1)), (second, (1,))):
            assert driver.share_out(epoch)
            for share in shares:
                slot = self.shared(sink, share, 1)
                slot.commit(SinkEpoch("one", epoch.epoch, (epoch.files[share],)))
                slot.close()
        driver.commit(first)
        driver.close()
        after = self.opened(sink, 2)
        for _ in range(2):
            after.commit(second)
            assert sorted(self.rows(sink)) == named(0, 8)
        after.close()

    def test_a_slot_of_an_older_driver_is_refused(self, sink: Sink) -> None:
        """It stood still before it sent its share, which the next driver has sent, or not yet."""
        driver = self.opened(sink, 1)
        first, second = self.epoch(sink, 1, named(0, 4)), self.epoch(sink, 2, named(4, 4))
        assert driver.share_out(first)
        late = self.shared(sink, 1, 1)
        after = self.opened(sink, 2)
        with pytest.raises(NotOwnerError):
            late.commit(SinkEpoch("one", 1, first.files[1:]))
        after.commit(first)
        with pytest.raises(NotOwnerError):
            self.shared(sink, 0, 1)
        after.commit(second)
        after.close()
        assert sorted(self.rows(sink)) == named(0, 8)

    def test_a_driver_of_another_job_of_the_name_takes_over(self, sink: Sink) -> None:
        """Whose origin is another, so that no generation says which is the newer one."""
        driver = self.opened(sink, 5)
        driver.commit(self.epoch(sink, 1, named(0, 4)))
        other = self.opened(sink, 1, origin="other")
        with pytest.raises(NotOwnerError):
            driver.commit(self.epoch(sink, 2, named(4, 4)))
        other.commit(self.epoch(sink, 1, named(4, 4), lineage="other"))
        other.close()
        assert sorted(self.rows(sink)) == named(0, 8)

    def test_an_epoch_of_another_size_follows(self, sink: Sink) -> None:
        """Of more files, of fewer, and of so few messages that the driver sends it."""
        driver = self.opened(sink, 1)
        sizes: list[list[int]] = [[2], [2, 2, 2], [2], [2, 2]]
        seen = 0
        for number, files in enumerate(sizes, 1):
            rows: list[Any] = []
            for count in files:
                rows.append(named(seen, count))
                seen += count
            driver.commit(self.epoch(sink, number, *rows))
        driver.commit(EpochSinkContract.epoch(self, sink, 5, named(seen, 3)))
        driver.close()
        assert sorted(self.rows(sink)) == named(0, seen + 3)


LARGE = 24_000
"""Messages of an epoch that slots send."""


def copying(source: str, target: str) -> Job:
    @hr.job("copying")
    def job(g: hr.Graph) -> None:
        g.input(source, schema={"id": int}, name="rows").send_to(target, name="out")

    return job


def feed(topics: Topics, topic: str, first: int) -> None:
    for partition in (0, 1):
        ids = range(first + partition, first + LARGE, 2)
        topics.send(topic, [b'{"id": %d}' % one for one in ids], partition=partition)


@pytest.mark.parametrize(
    ("point", "nth"),
    [("commit.published", 1), ("sink.sent", 2), ("sink.shared", 1), ("sink.committed", 1)],
)
def test_a_crash_while_slots_send_loses_and_doubles_nothing(
    kafka: KafkaServer, topics: Topics, name: str, point: str, nth: int
) -> None:
    """The slot, and with it the driver; the next driver has one slot, and then two again."""
    topics.create(name, 2)
    target = kafka.url(f"{name}.out", key="id", partitions="2")
    job = copying(kafka.url(name), target)
    with TestDriver(job, tasks=2, slots=2) as driver:
        feed(topics, name, 0)
        assert driver.advance_with_crash(point, nth)
        driver.slots = 1
        driver.run()
        driver.crash()
        driver.slots = 2
        feed(topics, name, LARGE)
        driver.run()
    assert sorted(row["id"] for row in topics.rows(f"{name}.out")) == list(range(2 * LARGE))


def slot_processes() -> list[int]:
    """The slots of a job that runs in this process."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words, stat = (path / "cmdline").read_bytes(), (path / "stat").read_text()
        except OSError:
            continue
        is_own = int(stat.rpartition(")")[2].split()[1]) == os.getpid()
        if is_own and b"headrace.standalone.child" in words:
            found.append(int(path.name))
    return found


def test_slots_that_are_killed_while_they_send_are_made_up_for(
    kafka: KafkaServer, topics: Topics, name: str, tmp_path: Path
) -> None:
    """kill -9 while the broker stands still, once the files of the epoch are there."""
    topics.create(name, 2)
    target = kafka.url(f"{name}.out", key="id", partitions="2")
    sets = {"job.slots": 2, "job.tasks": 2, "control.enabled": False}
    home = tmp_path / "home"
    with hr.start(copying(kafka.url(name), target), sets, home=home) as running:
        until(slot_processes, "slots")
        feed(topics, name, 0)
        until(lambda: list(home.rglob("*.messages")), "files of the epoch")
        kafka.pause()
        try:
            killed = slot_processes()
            for slot in killed:
                os.kill(slot, signal.SIGKILL)
        finally:
            kafka.resume()
        feed(topics, name, LARGE)
        until(lambda: len(topics.rows(f"{name}.out")) >= 2 * LARGE, "all rows")
        assert running.status != "failed"
    assert killed
    assert sorted(row["id"] for row in topics.rows(f"{name}.out")) == list(range(2 * LARGE))
