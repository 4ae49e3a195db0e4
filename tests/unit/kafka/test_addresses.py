"""What a graph says of addresses, without a broker."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.plans import planned
from tests.support.runs import World

import headrace as hr
from headrace import Job
from headrace.bus import LogAwayError
from headrace.errors import GraphError, InvalidInputError
from headrace.testing import TestDriver

PLACE = "kafka://localhost:1"


def copying(source: str, target: object = "copied") -> Job:
    @hr.job("copying")
    def job(g: hr.Graph) -> None:
        g.input(source, schema={"id": int}).send_to(target)  # type: ignore[arg-type]

    return job


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("kafak://host/topic", r"no kind of log 'kafak'; did you mean 'kafka'"),
        ("kafka:///topic", r"expected kafka://HOST:9092/TOPIC"),
        ("kafka://me:secret22@host:1/topic", r"found hosts 'host:1'; .*sasl\.username"),
        (f"{PLACE}/", r"found topic ''"),
        (f"{PLACE}/a b", r"found topic 'a b'"),
        (f"{PLACE}/topic?fromat=json", r"unknown option 'fromat'; did you mean 'format'"),
        (f"{PLACE}/topic?format=avor", r"format is 'avor'; expected one of arrow, avro, json"),
        (f"{PLACE}/topic?format=avro", r"schemas are in a registry; give schema\.registry\.url="),
        (
            f"{PLACE}/topic?schema.registry.url=http://me:secret22@host",
            r"expected http://HOST:8081",
        ),
        (
            f"{PLACE}/topic?schema.registry.url=http://h&schema.registry.basic.auth.user.info=a:secret22",
            r"expected env:NAME or file:PATH",
        ),
        (f"{PLACE}/topic?auto.register.schemas=no", r"is 'no'; expected true or false"),
        (f"{PLACE}/topic?partitions=0", r"partitions is '0'"),
        (f"{PLACE}/topic?group.id=mine", r"group\.id cannot be set: give group="),
        (f"{PLACE}/topic?sasl.password=secret22", r"expected env:NAME or file:PATH"),
    ],
)
def test_mistakes_in_an_address_are_those_of_the_graph(address: str, said: str) -> None:
    for job in (copying(address), copying("rows", address)):
        with pytest.raises(GraphError, match=said) as caught:
            job.build()
        assert "secret22" not in str(caught.value)


def test_an_input_has_the_name_of_its_topic() -> None:
    [source, sink] = copying(f"{PLACE}/clicks", f"{PLACE}/totals").build().operators
    assert (source.name, sink.name) == ("clicks", "clicks.to_totals")


def test_one_name_stands_for_one_topic() -> None:
    @hr.job("both")
    def both(g: hr.Graph) -> None:
        for host in ("one", "two"):
            g.input(f"kafka://{host}:1/clicks", schema={"id": int}).send_to(f"from-{host}")

    with (
        TestDriver(both) as driver,
        pytest.raises(InvalidInputError, match="reads 'clicks' from two places"),
    ):
        driver.start()


def test_settings_put_a_stream_in_the_place_of_a_topic() -> None:
    job, inputs = copying(f"{PLACE}/clicks"), {"clicks": {"stream": "recorded"}}
    with TestDriver(job, inputs=inputs) as driver:
        driver.create("recorded", {"id": pa.int64()})
        driver.feed("recorded", [{"id": 7}])
        driver.run()
        assert [row["id"] for row in driver.output("copied")] == [7]


def test_a_job_that_starts_while_no_broker_answers_waits_and_says_so(tmp_path: Path) -> None:
    job = copying(f"{PLACE}/clicks?socket.timeout.ms=50")
    told: list[str] = []
    sets = ("state.disk_wait_s=0.01", "control.enabled=false")
    with pytest.raises(LogAwayError, match="topic clicks at localhost:1 does not answer"):
        hr.run(job, World(tmp_path / "home").settings(*sets), on_notice=told.append)
    assert "the job waits for an answer" in told[0]


def test_a_pattern_of_topics_is_for_inputs() -> None:
    with pytest.raises(GraphError, match=r"found topic 'a\*'; patterns are for inputs"):
        copying("rows", f"{PLACE}/a*").build()
    [source, _] = copying(f"{PLACE}/orders-*").build().operators
    assert source.name == "orders-all"


def between(*addresses: str) -> Job:
    """A job with a topic before each of its counts."""

    @hr.job("parted")
    def parted(g: hr.Graph) -> None:
        rows = g.input("rows", schema={"id": int})
        for number, address in enumerate(addresses):
            keyed = rows.partition_by("id", via=address, name=f"by-{number}")
            keyed.aggregate(n=hr.agg.count()).send_to(f"counts-{number}")

    return parted


def test_a_topic_between_two_parts_is_the_jobs_own() -> None:
    for address, wrong in {
        f"{PLACE}/a-*": r"found topic 'a-\*'; patterns are for inputs",
        f"{PLACE}/a?format=json&key=id": "found options format, key; expected settings of the",
        f"{PLACE}/a?sasl.password=secret-word": "the value of sasl.password is in the address",
        "pulsar://host/a": "no kind of log 'pulsar'",
    }.items():
        with pytest.raises(GraphError, match=wrong) as found:
            between(address).build()
        assert "secret-word" not in str(found.value)
    with TestDriver(between(f"{PLACE}/a", f"{PLACE}/a?client.id=me")) as driver:
        driver.create("rows", {"id": pa.int64()})
        with pytest.raises(GraphError, match=r"via .*/a is used by 'by-0', too; give it a log of"):
            driver.run()


def test_a_driver_with_streams_in_memory_asks_no_broker() -> None:
    with TestDriver(between(f"{PLACE}/a", f"{PLACE}/b")) as driver:
        driver.create("rows", {"id": pa.int64()})
        driver.feed("rows", [{"id": 1}, {"id": 2}, {"id": 1}])
        driver.run()
        assert {row["id"]: row["n"] for row in driver.output("counts-1")} == {1: 2, 2: 1}


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_columns_that_a_format_does_not_have_are_mistakes(form: str) -> None:
    @hr.job("copying")
    def job(g: hr.Graph) -> None:
        rows = g.input("rows", schema={"a-b": pa.string(), "id": pa.int64()})
        rows.map("a-b", "id").send_to(f"{PLACE}/t?format={form}&schema.registry.url=http://h")

    with pytest.raises(GraphError, match=r"column 'a-b' is no name in"):
        planned(job)
