"""From topic to topic, exactly-once: `python bench/kafka.py columns|count|latency|restore`.

A broker of its own is started beside what is measured. `columns` has a job that filters columns in
two processes, beside two Python processes that read the same topic and do nothing with it: as the
client does by itself, and without its pauses, see `PAUSES`. `count`
has a job that counts messages by their id, each in a call, in RocksDB, and `latency` the time of
1,000 messages a second through it, from their send to a reader of committed messages. `restore`
runs `count`, and then starts the job with and without its local state: the difference is the time
of a restore, which Kafka Streams measures itself; `kept` is what holds the changes. All print JSON.
With `--streams`, a program of Kafka Streams does the same with `exactly_once_v2`, in turn with the
job, and with `--flink` one of Flink, with RocksDB; `bench/peers/fetch.sh` fetches and compiles what
they need.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import headrace as hr
from headrace import Job
from headrace.testing.kafka_server import KafkaServer, kafka_jars

lib: Any = importlib.import_module("confluent_kafka")
admin: Any = importlib.import_module("confluent_kafka.admin")

PARTITIONS = 4
COLUMNS = {"id": int, "sent": float}
COUNTED = {"id": int, "count": int, "sent": float}
WAIT_S = 120.0
RATE = 1_000
WARM_S = 10.0
KEPT = ("segment", "snapshot")
SOON = "session.timeout.ms=6000"
"""Else the next process waits 45 s for the group to forget the last one."""
SLOTS = {"job.slots": 2, "job.tasks": 2, "control.enabled": False}


class Counting:
    """Counts messages by id, in RocksDB."""

    def process(self, message: Any, context: Any) -> None:
        """Take a message."""
        counts = context.store("counts")
        count = counts.get(message.id, 0) + 1
        counts.put(message.id, count)
        context.emit({"id": message.id, "count": count, "sent": message.sent})


def counting(source: str, target: str) -> Job:
    """Return the job of `count` and `latency`."""

    @hr.job("counting")
    def job(g: hr.Graph) -> None:
        rows = g.input(source, schema=COLUMNS, name="rows").partition_by("id")
        rows.process(Counting, {"counts": int}, returns=COUNTED).send_to(target)

    return job


def filtering(source: str, target: str) -> Job:
    """Return the job of `columns`."""

    @hr.job("filtering")
    def job(g: hr.Graph) -> None:
        rows = g.input(source, schema=COLUMNS, name="rows")
        rows.filter(hr.col("id") >= 0).send_to(target)

    return job


def create(server: KafkaServer, *topics: str) -> None:
    """Make topics, and wait until they have leaders."""
    client = admin.AdminClient({"bootstrap.servers": server.address})
    made = client.create_topics([admin.NewTopic(name, PARTITIONS, 1) for name in topics])
    for one in made.values():
        one.result(WAIT_S)
    time.sleep(1.0)


def fill(server: KafkaServer, topic: str, messages: int, ids: int) -> None:
    """Send messages of about 40 bytes, with the id as the key."""
    given = {"partitioner": "murmur2_random", "queue.buffering.max.messages": "1000000"}
    producer = lib.Producer({"bootstrap.servers": server.address, "linger.ms": "20", **given})
    for number in range(messages):
        one = number * 7919 % ids
        value = b'{"id": %d, "sent": %d.5}' % (one, number)
        producer.produce(topic, value, b"%d" % one)
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(WAIT_S) == 0


def of_headrace(job: Job, messages: int, home: Path, steps: Counter[str] | None = None) -> float:
    """Return the messages a second of a job, from its first epoch to the last one's publication.

    Args:
        job: of `columns` or `count`.
        messages: that it is to read.
        home: of the run.
        steps: gets the ms of each step of epochs.
    """
    steps = Counter() if steps is None else steps
    begun: list[float] = []
    rows = 0
    over = threading.Event()

    def on_epoch(summary: Any) -> None:
        nonlocal rows
        begun.append(time.perf_counter() - summary.took_ms / 1000)
        rows += summary.rows
        steps.update({name: round(ms) for name, ms in summary.timings_ms.items()})
        steps.update({f"slot {name}": round(ms) for name, ms in summary.slot_timings_ms.items()})
        if rows >= messages:
            begun.append(time.perf_counter())
            over.set()

    with hr.start(job, SLOTS, home=home, on_epoch=on_epoch) as running:
        while not over.wait(0.5):
            if running.status == "failed":
                running.wait()
    return messages / (begun[-1] - begun[0])


PAUSES = {"readers": "1000", "quick readers": "25"}
"""How long a client that has fetched enough ahead pauses, ms: by itself, and as Headrace has it."""

READ = """
import sys, time, confluent_kafka as lib
servers, topic, pause, *partitions = sys.argv[1:]
reader = lib.Consumer({"bootstrap.servers": servers, "group.id": "read", "isolation.level":
    "read_committed", "enable.auto.commit": "false", "queued.max.messages.kbytes": "16384",
    "fetch.queue.backoff.ms": pause})
reader.assign([lib.TopicPartition(topic, int(one), 0) for one in partitions])
began = 0.0
ends = {one: reader.get_watermark_offsets(lib.TopicPartition(topic, int(one)))[1]
    for one in partitions}
left = sum(ends.values())
while left:
    left -= len(reader.consume(10000, 0.1))
    began = began or time.time()
print(began, time.time())
"""


def of_readers(server: KafkaServer, topic: str, messages: int, pause_ms: str) -> float:
    """Return the messages a second that two processes reach that only read."""
    halves = (range(0, PARTITIONS, 2), range(1, PARTITIONS, 2))
    running = [
        subprocess.Popen(
            [sys.executable, "-c", READ, server.address, topic, pause_ms, *map(str, half)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for half in halves
    ]
    told = [one.communicate(timeout=WAIT_S)[0].split() for one in running]
    begins, ends = [float(one[0]) for one in told], [float(one[1]) for one in told]
    return messages / (max(ends) - min(begins))


def streams(server: KafkaServer, source: str, target: str, name: str, *words: str) -> list[str]:
    """Return the command of the program of Kafka Streams."""
    peers = kafka_jars().parent / kafka_jars().name.replace("kafka", "peers")
    classes = f"{kafka_jars()}/*:{peers}/*:{peers}/classes"
    java = str(Path(os.environ["JAVA_HOME"], "bin", "java"))
    own = [server.address, source, target, name]
    return [java, "-Xmx1g", "-cp", classes, "StreamsCount", *own, *words, SOON]


def of_flink(server: KafkaServer, source: str, messages: int, folder: Path) -> float:
    """Return the messages a second of Flink, from its first message to the last one committed."""
    name = folder.name
    create(server, f"{name}-out")
    [jars] = kafka_jars().parent.glob("flink-*")
    java = str(Path(os.environ["JAVA_HOME"], "bin", "java"))
    opens = [f"--add-opens=java.base/java.{one}=ALL-UNNAMED" for one in ("util", "lang", "time")]
    own = [server.address, source, f"{name}-out", name, str(folder), str(messages)]
    command = [java, "-Xmx1g", *opens, "-cp", f"{jars}/*:{jars}/classes", "FlinkCount", *own]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    return messages / float(json.loads(ran.stdout.splitlines()[-1])["seconds"])


def of_streams(server: KafkaServer, source: str, messages: int, folder: Path) -> float:
    """Return the messages a second of Kafka Streams, from its first message to the last commit."""
    name = folder.name
    create(server, f"{name}-out")
    command = streams(server, source, f"{name}-out", name, str(folder), str(messages))
    ran = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    told = json.loads(ran.stdout.splitlines()[-1])
    return messages / float(told["seconds"])


def throughput(words: Any, folder: Path, server: KafkaServer) -> dict[str, Any]:
    """Measure `columns` or `count`, in turn, and return the medians."""
    create(server, "in")
    fill(server, "in", words.messages, words.ids)
    make = filtering if words.what == "columns" else counting
    found: dict[str, list[float]] = {"headrace": []}
    steps: Counter[str] = Counter()
    for number in range(words.rounds):
        target = server.url(f"out{number}", key="id", partitions=str(PARTITIONS))
        job = make(server.url("in"), target)
        found["headrace"].append(of_headrace(job, words.messages, folder / f"home{number}", steps))
        for name, pause in PAUSES.items() if words.what == "columns" else ():
            rate = of_readers(server, "in", words.messages, pause)
            found.setdefault(name, []).append(rate)
        if words.streams:
            peer = of_streams(server, "in", words.messages, folder / f"streams{number}")
            found.setdefault("streams", []).append(peer)
        if words.flink:
            peer = of_flink(server, "in", words.messages, folder / f"flink{number}")
            found.setdefault("flink", []).append(peer)
    rates = {name: round(statistics.median(each)) for name, each in found.items()}
    ratios = {
        f"to {name}": round(rates["headrace"] / rate, 2)
        for name, rate in rates.items()
        if name != "headrace"
    }
    longest = {name: ms for name, ms in steps.most_common(12) if ms}
    return {"messages": words.messages, "a second": rates, **ratios, "steps, ms": longest}


JOB = """
import sys
import headrace as hr
from bench.kafka import counting
from headrace.config import load_settings
source, target, home, *sets = sys.argv[1:]
hr.run(counting(source, target), dict(one.split("=", 1) for one in sets), home=home)
"""


@contextmanager
def running(command: list[str]) -> Iterator[None]:
    """Run a program for a block."""
    here = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": here}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


def delays(server: KafkaServer, source: str, target: str, seconds: float) -> dict[str, float]:
    """Send at a rate for some time; return percentiles of the delay to a committed reader, ms."""
    given = {"bootstrap.servers": server.address}
    own = {"group.id": "delays", "isolation.level": "read_committed", "fetch.wait.max.ms": "10"}
    reader = lib.Consumer({**given, **own, "auto.offset.reset": "latest"})
    reader.assign([lib.TopicPartition(target, one, 0) for one in range(PARTITIONS)])
    sends = round((WARM_S + seconds) * RATE)
    waits: list[tuple[float, float]] = []

    def receive() -> None:
        limit = time.time() + WARM_S + seconds + WAIT_S
        while len(waits) < sends and time.time() < limit:
            for message in reader.consume(500, 0.005):
                if message.error() is None:
                    sent = float(json.loads(message.value())["sent"])
                    waits.append((sent, time.time() - sent))

    receiver = threading.Thread(target=receive)
    receiver.start()
    producer = lib.Producer({**given, "linger.ms": "1", "partitioner": "murmur2_random"})
    begin = time.time()
    for number in range(sends):
        due = begin + number / RATE
        if (left := due - time.time()) > 0:
            time.sleep(left)
        one = number * 7919 % 10_000
        value = b'{"id": %d, "sent": %.6f}' % (one, due)
        producer.produce(source, value, b"%d" % one)
        producer.poll(0)
    producer.flush(WAIT_S)
    receiver.join()
    reader.close()
    later = sorted(wait for sent, wait in waits if sent >= begin + WARM_S)
    if len(later) < 2:
        raise SystemExit(
            f"nothing came to {target!r} in time: does the program run that sends to it?"
        )
    cuts = statistics.quantiles(later, n=100)
    found = {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "most": later[-1]}
    return {name: round(1000 * wait, 1) for name, wait in found.items()} | {
        "lost": sends - len(waits)
    }


def latency(words: Any, folder: Path, server: KafkaServer) -> dict[str, Any]:
    """Measure the delay of 1,000 messages a second through the job, and through Kafka Streams."""
    found: dict[str, Any] = {}
    create(server, "in", "out", "streams-in", "streams-out")
    urls = [server.url("in"), server.url("out", key="id")]
    sets = ["job.slots=1", "job.tasks=2", "control.enabled=false", *(words.set or [])]
    own = [sys.executable, "-c", JOB, *urls, str(folder / "home"), *sets]
    sides: dict[str, tuple[str, str, Callable[[], list[str]]]] = {
        "headrace": ("in", "out", lambda: own)
    }
    if words.streams:
        command = streams(server, "streams-in", "streams-out", "peer", str(folder / "peer"), "0")
        sides["streams"] = ("streams-in", "streams-out", lambda: command)
    for name, (source, target, made) in sides.items():
        with running(made()):
            found[name] = delays(server, source, target, words.seconds)
    return found


def until_first(job: Job, server: KafkaServer, home: Path) -> float:
    """Return the seconds from the start of a job to the end of an epoch with a message.

    Nobody waits for the host that the state was on.
    """
    over = threading.Event()
    began = time.perf_counter()
    given = {**SLOTS, "placement.wait_s": 0.0}
    with hr.start(job, given, home=home, on_epoch=lambda _: over.set()) as running:
        fill(server, "in", PARTITIONS, PARTITIONS)
        while not over.wait(0.05):
            if running.status == "failed":
                running.wait()
        return time.perf_counter() - began


def restored(command: list[str]) -> dict[str, float]:
    """Start a program of Kafka Streams; return how many changes it restores, and in which time."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        process.terminate()
    return {"changes": told["restored"], "restore, s": round(told["seconds"], 1)}


def size_mb(folder: Path, pattern: str) -> float:
    """Return the size of the files that match, in MB."""
    return round(sum(one.stat().st_size for one in folder.glob(pattern) if one.is_file()) / 1e6, 1)


def restore(words: Any, folder: Path, server: KafkaServer) -> dict[str, Any]:
    """Measure starts with and without local state, and what the changes take."""
    create(server, "in")
    fill(server, "in", words.messages, words.ids)
    home, peer = folder / "home", folder / "peer"
    job = counting(server.url("in"), server.url("out", key="id", partitions=str(PARTITIONS)))
    of_headrace(job, words.messages, home)
    found: dict[str, Any] = {"messages": words.messages, "ids": words.ids}
    own = {"with state, s": round(until_first(job, server, home), 1)}
    shutil.rmtree(home / "state")
    own["without, s"] = round(until_first(job, server, home), 1)
    kept = {name: size_mb(home / "jobs/counting", f"{name}/**/*") for name in KEPT}
    found["headrace"] = own | {"kept, MB": kept}
    if words.streams:
        of_streams(server, "in", words.messages, peer)
        command = streams(server, "in", "peer-out", "peer", str(peer), "0")
        shutil.rmtree(peer)
        theirs = restored(command)
        changelog = size_mb(folder / "broker/data", "peer-counts-changelog-*/*.log")
        found["streams"] = theirs | {"kept, MB": {"changelog": changelog}}
    return found


def main() -> None:
    """Measure, and print."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("what", choices=("columns", "count", "latency", "restore"))
    given.add_argument("--messages", type=int, default=400_000)
    given.add_argument("--ids", type=int, default=100_000)
    given.add_argument("--rounds", type=int, default=1)
    given.add_argument("--seconds", type=float, default=20.0)
    given.add_argument("--streams", action="store_true", help="Kafka Streams, too")
    given.add_argument("--flink", action="store_true", help="Flink with RocksDB, too, with count")
    given.add_argument("--set", action="append", help="a setting of the job, with latency")
    words = given.parse_args()
    measure = {"latency": latency, "restore": restore}.get(words.what, throughput)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with KafkaServer(folder / "broker") as server:
            found = measure(words, folder, server)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
