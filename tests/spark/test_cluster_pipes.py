"""``headrace pipe --master``: clients on the hosts of a cluster, one of which is lost."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from tests.spark.hosts import HOSTS, small_executors
from tests.support.cli import done, headrace
from tests.support.homes import Home
from tests.support.processes import Started, until

from headrace.testing.cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

PARTITIONS = 3
CLIENT = """
while read -r line; do
  case $line in '['*) ;; *) echo "$line" >>"seen-$HEADRACE_PARTITION" ;; esac
  echo "$line"
done
"""
"""Keeps each row, sends it on, and acknowledges."""


class Orders(Home):
    """A home with a stream of orders, which a pipe copies."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.fed = 0
        for name in ("orders", "copy"):
            self.create(name, {"id": pa.int64()}, partitions=PARTITIONS)

    def feed(self, count: int = 20) -> None:
        ids = range(self.fed, self.fed + count)
        for partition in range(PARTITIONS):
            self.send("orders", [{"id": number} for number in ids], partition)
        self.fed += count

    @property
    def is_copied(self) -> bool:
        return self.count("copy") == PARTITIONS * self.fed

    def lags(self) -> list[int | None]:
        said = done("pipe", "--stream", "orders", "--status", "--json", "--home", self.home)
        return [json.loads(line)["lag"] for line in said.splitlines()]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    running = Started(tmp_path, tmp_path / "home")
    yield running
    running.end()


def test_partitions_of_a_lost_host_continue_on_another(
    tmp_path: Path, cluster: SparkCluster, started: Started
) -> None:
    orders = Orders(tmp_path / "home")
    options = [one.removeprefix("spark.conf.").partition("=") for one in small_executors()]
    options.append(("spark.ui.enabled", "=", "false"))
    lines = (f"{json.dumps(name)} = {json.dumps(value)}" for name, _, value in options)
    (tmp_path / "headrace.toml").write_text("\n".join(["[spark.conf]", *lines, ""]))
    (tmp_path / "client.sh").write_text(CLIENT)
    words: tuple[str, ...] = ("pipe", "--stream", "orders", "--every-rows", "7", "--every-s", "0.2")
    words += ("--output", "copy", "--master", cluster.url, "--", "sh", "client.sh")

    orders.feed()
    pipe = started.start(*words)
    until(lambda: orders.is_copied, "the first rows")
    until(
        lambda: hosts(started) == {cluster.address(number) for number in range(HOSTS)}, "all hosts"
    )
    again = headrace("pipe", "--home", orders.home, *words[1:])
    assert again.code == 4
    assert "of stream 'orders' is read by process" in again.err

    cluster.kill_worker(0)
    orders.feed()
    until(lambda: orders.is_copied, "the rows after the loss")
    assert "executor on 127.0.0.2 is gone; partitions are dealt again" in started.said(0)
    assert hosts(started) == {"127.0.0.3"}

    orders.feed()
    until(lambda: orders.is_copied, "the last rows")
    pipe.send_signal(signal.SIGTERM)
    assert pipe.wait() == 130
    assert orders.lags() == [0] * PARTITIONS
    assert [row["id"] for row in orders.rows("copy")] == [*range(orders.fed)] * PARTITIONS
    for partition in range(PARTITIONS):
        rows = (tmp_path / f"seen-{partition}").read_text().splitlines()
        seen = [json.loads(line)["id"] for line in rows]
        assert [*dict.fromkeys(seen)] == [*range(orders.fed)]
        assert all(later <= earlier + 1 for earlier, later in pairwise(seen))
    assert not [*(orders.home / "pipes" / "orders").glob("stop-*")]


def hosts(started: Started) -> set[str]:
    """Return where partitions are, as the pipe last said."""
    said = started.said(0).rpartition("consumer 'orders' on")[2].splitlines()
    return set(re.findall(r"\d on ([0-9.]+)", said[0])) if said else set()
