"""What a job says of its remote stores, and what is told when it cannot be."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.plans import Process, StoreSpec, explain, plan, with_store_servers

import headrace as hr
from headrace.errors import GraphError, InvalidInputError

SCHEMA = {"id": int, "country": str}


class Mine:
    def process(self, message: Any, context: hr.Context) -> None: ...


def job_with(*stores: StoreSpec, keyed: bool = True, **more: Any) -> hr.Job:
    @hr.job("mine")
    def mine(g: hr.Graph) -> None:
        stream = g.input("in", schema=SCHEMA)
        stream = stream.partition_by("id") if keyed else stream
        stream.process(Mine, list(stores), name="mine", **more)

    return mine


@pytest.mark.parametrize(
    ("store", "message"),
    [
        (
            {"url": "http://x"},
            "url is http://x: no remote store 'http'; expected redis, rediss or unix",
        ),
        ({"remote": hr.Remote(access="fast")}, "access is 'fast'; expected one of"),  # type: ignore[arg-type]
        ({"remote": hr.Remote(load=("id",), access="async")}, "load= is for access='batched'"),
        ({"remote": hr.Remote(batch_keys=0)}, "batch_keys is 0; expected at least 1"),
        ({"remote": hr.Remote(cache_bytes=-1)}, "cache_bytes is -1; expected at least 0"),
        ({"remote": hr.Remote(timeout="soon")}, "timeout is 'soon'; expected a duration"),
        ({"changelog": False}, "is remote and never has a changelog"),
        ({"kind": "memory", "url": "redis://x"}, "of kind 'memory', but url= and remote= are for"),
    ],
)
def test_what_cannot_be_is_told(store: dict[str, Any], message: str) -> None:
    spec = hr.store("s", int, **{"kind": "remote", **store})
    with pytest.raises(GraphError) as failure:
        job_with(spec).build()
    assert message in str(failure.value)


def test_an_address_with_a_mistake_is_told_without_its_password() -> None:
    with pytest.raises(GraphError) as failure:
        job_with(hr.store("s", int, kind="remote", url="http://me:secret@x")).build()
    assert "secret" not in str(failure.value)


def test_columns_to_load_must_be_there() -> None:
    spec = hr.store("s", int, kind="remote", url="redis://x", remote=hr.Remote(load=("land",)))
    with pytest.raises(GraphError, match=r"store 's', load=.*'land'"):
        plan(job_with(spec).build(), {})


def test_columns_to_load_are_read_though_the_code_does_not_use_them() -> None:
    spec = hr.store("s", int, kind="remote", url="redis://x", remote=hr.Remote(load=("country",)))
    planned = plan(job_with(spec, uses=["id"]).build(), {})
    assert "country" in planned.stages[0].inputs[0].columns


def test_a_remote_store_needs_no_key_and_a_local_one_does() -> None:
    remote = hr.store("s", int, kind="remote", url="redis://x")
    assert len(plan(job_with(remote, keyed=False).build(), {}).stages) == 1
    with pytest.raises(GraphError, match="put partition_by before it"):
        job_with(remote, hr.store("t", int), keyed=False).build()


def test_an_aggregate_is_never_remote() -> None:
    @hr.job("mine")
    def mine(g: hr.Graph) -> None:
        keyed = g.input("in", schema=SCHEMA).partition_by("id")
        keyed.aggregate(store="remote", n=hr.agg.count())

    with pytest.raises(GraphError, match="is of kind 'remote'; expected one of"):
        mine.build()


def test_explain_says_what_is_promised_and_hides_the_password() -> None:
    url = "redis://me:secret@host:6379/0?x=y"
    text = " ".join(
        explain(plan(job_with(hr.store("s", int, kind="remote", url=url)).build(), {})).split()
    )
    assert (
        "(remote, batched, at redis://me@host:6379/0): at-least-once; sent before the epoch" in text
    )
    assert "no changelog" in text
    assert "secret" not in text


def test_the_setting_names_the_server_of_stores_that_name_none() -> None:
    graph = job_with(
        hr.store("a", int, kind="remote"),
        hr.store("b", int, kind="remote", url="redis://own"),
        hr.store("c", int),
    ).build()

    operator = with_store_servers(graph, "redis://set").operator("mine")

    assert isinstance(operator, Process)
    urls = [spec.remote.url if spec.remote else None for spec in operator.stores]
    assert urls == ["redis://set", "redis://own", None]


def test_no_server_at_all_is_told_before_anything_runs() -> None:
    graph = job_with(hr.store("s", int, kind="remote")).build()
    with pytest.raises(InvalidInputError, match=r"has no address.*setting remote\.url"):
        with_store_servers(graph, None)
    assert with_store_servers(graph, None, absent_ok=True) == graph
