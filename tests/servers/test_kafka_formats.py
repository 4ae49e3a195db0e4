"""Formats with a schema registry, beside Confluent's serializers; Arrow; and how they evolve."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from tests.support.homes import rows_in
from tests.support.kafka import KafkaServer, RegistryServer, Topics

import headrace as hr
from headrace import Job
from headrace.bus import LogAwayError
from headrace.errors import InvalidInputError
from headrace.testing import TestDriver

lib: Any = importlib.import_module("confluent_kafka.schema_registry")
AT = datetime(2024, 5, 6, 7, 8, 9, 123000, UTC)
ROWS = [
    {"user": "ann", "n": 7, "price": 2.5, "tags": ["a", "b"], "inner": {"x": 1}, "note": None},
    {"user": "bob", "n": -1, "price": 0.0, "tags": [], "inner": {"x": 2}, "note": "hé"},
]
AVRO = {
    "type": "record",
    "name": "Click",
    "namespace": "shop",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "n", "type": "long"},
        {"name": "price", "type": "double"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {
            "name": "inner",
            "type": {"type": "record", "name": "In", "fields": [{"name": "x", "type": "int"}]},
        },
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
PROTO = """syntax = "proto3";
package shop;
message Click {
  string user = 1; int64 n = 2; double price = 3; repeated string tags = 4;
  message In { int32 x = 1; }
  In inner = 5; optional string note = 6;
}
"""
JSON = {
    "title": "Click",
    "type": "object",
    "properties": {
        "user": {"type": "string"},
        "n": {"type": "integer"},
        "price": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "inner": {"type": "object", "properties": {"x": {"type": "integer"}}},
        "note": {"type": ["string", "null"]},
    },
}


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"t{abs(hash(request.node.nodeid))}"


class Schemas:
    """The registry by Confluent's client and serializers, past the code under test."""

    def __init__(self, url: str) -> None:
        self.client = lib.SchemaRegistryClient({"url": url})

    def register(self, topic: str, kind: str, text: str) -> int:
        found: int = self.client.register_schema(f"{topic}-value", lib.Schema(text, kind))
        return found

    def context(self, topic: str) -> Any:
        parts: Any = importlib.import_module("confluent_kafka.serialization")
        return parts.SerializationContext(topic, parts.MessageField.VALUE)

    def avro(self, topic: str, text: str, rows: list[dict[str, Any]]) -> list[bytes]:
        module: Any = importlib.import_module("confluent_kafka.schema_registry.avro")
        write = module.AvroSerializer(self.client, text)
        return [write(row, self.context(topic)) for row in rows]

    def json(self, topic: str, text: str, rows: list[dict[str, Any]]) -> list[bytes]:
        module: Any = importlib.import_module("confluent_kafka.schema_registry.json_schema")
        write = module.JSONSerializer(text, self.client)
        return [write(row, self.context(topic)) for row in rows]

    def protobuf(self, topic: str, text: str, rows: list[dict[str, Any]]) -> list[bytes]:
        """Values as the serializer writes them: those of the first message."""
        number = self.register(topic, "PROTOBUF", text)
        kind = message_of(text)
        return [b"\0" + number.to_bytes(4, "big") + b"\0" + encoded(kind, row) for row in rows]

    def read(self, form: str, topic: str, values: list[bytes]) -> list[Any]:
        """Return what Confluent's deserializers, or the compiled message, make of values."""
        if form == "avro":
            module: Any = importlib.import_module("confluent_kafka.schema_registry.avro")
            read = module.AvroDeserializer(self.client)
            return [read(value, self.context(topic)) for value in values]
        newest = self.client.get_latest_version(f"{topic}-value")
        if form == "jsonschema":
            module = importlib.import_module("confluent_kafka.schema_registry.json_schema")
            read = module.JSONDeserializer(newest.schema, schema_registry_client=self.client)
            return [read(value, self.context(topic)) for value in values]
        kind = message_of(newest.schema.schema_str)
        for value in values:
            assert value[:6] == b"\0" + newest.schema_id.to_bytes(4, "big") + b"\0"
        return [decoded(kind, value[6:]) for value in values]


def message_of(text: str) -> Any:
    """Compile a schema by Protobuf's compiler itself."""
    tools: Any = importlib.import_module("grpc_tools.protoc")
    kinds: Any = importlib.import_module("google.protobuf.descriptor_pb2")
    made: Any = importlib.import_module("google.protobuf.message_factory")
    with TemporaryDirectory() as folder:
        Path(folder, "a.proto").write_text(text)
        given = Path(tools.__file__).parent / "_proto"
        words = ["protoc", f"-I{folder}", f"-I{given}", "--include_imports"]
        assert tools.main([*words, f"--descriptor_set_out={folder}/out", "a.proto"]) == 0
        files = kinds.FileDescriptorSet.FromString(Path(folder, "out").read_bytes()).file
    found = made.GetMessages(list(files))
    [first] = [one.message_type[0].name for one in files if one.name == "a.proto"]
    return next(kind for name, kind in found.items() if name.rpartition(".")[2] == first)


def encoded(kind: Any, row: dict[str, Any]) -> bytes:
    return bytes(kind(**{k: v for k, v in row.items() if v is not None}).SerializeToString())


def decoded(kind: Any, value: bytes) -> dict[str, Any]:
    module: Any = importlib.import_module("google.protobuf.json_format")
    message = kind.FromString(value)
    found: dict[str, Any] = module.MessageToDict(message, preserving_proto_field_name=True)
    return found


def copying(source: str, target: Any, columns: Any = None, **more: Any) -> Job:
    @hr.job("copying")
    def job(g: hr.Graph) -> None:
        g.input(source, schema=columns, name="rows", **more).send_to(target, name="out")

    return job


def url_of(kafka: KafkaServer, registry: RegistryServer, topic: str, form: str, **more: str) -> str:
    return kafka.url(topic, format=form, schema__registry__url=registry.url, **more)


def own(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.startswith("_")} for row in rows]


@pytest.fixture
def schemas(registry: RegistryServer) -> Schemas:
    return Schemas(registry.url)


TEXTS = {"avro": json.dumps(AVRO), "protobuf": PROTO, "jsonschema": json.dumps(JSON)}


def written(schemas: Schemas, form: str, topic: str, text: str, rows: list[Any]) -> list[bytes]:
    how: dict[str, Callable[..., list[bytes]]] = {
        "avro": schemas.avro,
        "protobuf": schemas.protobuf,
        "jsonschema": schemas.json,
    }
    return how[form](topic, text, rows)


@pytest.mark.parametrize("form", ["avro", "protobuf", "jsonschema"])
def test_columns_come_of_the_registry_and_others_read_what_is_written(
    kafka: KafkaServer,
    registry: RegistryServer,
    schemas: Schemas,
    topics: Topics,
    name: str,
    form: str,
) -> None:
    topics.create(name)
    topics.send(name, written(schemas, form, name, TEXTS[form], ROWS))
    source = url_of(kafka, registry, name, form)
    target = url_of(kafka, registry, f"{name}.out", form, key="user")
    with TestDriver(copying(source, "copied")) as driver:
        driver.run()
        assert own(rows_in(driver.bus, "copied")) == ROWS
    with TestDriver(copying(source, target)) as driver:
        driver.run()
    found = [one.value for one in topics.read(f"{name}.out") if one.value is not None]
    read = schemas.read(form, f"{name}.out", found)
    if form == "protobuf":  # 64 bits are text there, and fields without values are left out
        assert read == [
            {"user": "ann", "n": "7", "price": 2.5, "tags": ["a", "b"], "inner": {"x": 1}},
            {"user": "bob", "n": "-1", "price": 0.0, "inner": {"x": 2}, "note": "hé"},
        ]
    else:
        assert read == ROWS
    versions = schemas.client.get_versions(f"{name}.out-value")
    assert versions == [1], "a schema is registered once"
    with TestDriver(copying(url_of(kafka, registry, f"{name}.out", form), "again")) as driver:
        driver.run()
        again = own(rows_in(driver.bus, "again"))
    assert sorted(again, key=lambda row: str(row["user"])) == ROWS


def test_avro_is_read_by_the_newest_schema(
    kafka: KafkaServer, registry: RegistryServer, schemas: Schemas, topics: Topics, name: str
) -> None:
    """Added fields have their default, numbers are widened, and what was removed is null."""
    topics.create(name)
    one = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
    old = {"name": "old", "type": "string", "default": ""}
    two = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "number", "type": "long", "aliases": ["id"]},
            {"name": "color", "type": "string", "default": "red"},
        ],
    }
    first = {**one, "fields": [*one["fields"], old]}
    topics.send(name, schemas.avro(name, json.dumps(first), [{"id": 1, "old": "x"}]))
    topics.send(name, schemas.avro(name, json.dumps(two), [{"number": 2**40, "color": "blue"}]))
    source = url_of(kafka, registry, name, "avro")
    with TestDriver(copying(source, "copied")) as driver:
        driver.run()
        assert own(rows_in(driver.bus, "copied")) == [
            {"number": 1, "color": "red"},
            {"number": 2**40, "color": "blue"},
        ]
    declared = {"id": int, "old": str, "color": str, "more": float}
    with TestDriver(copying(source, "copied", declared)) as driver:
        driver.run()
        assert own(rows_in(driver.bus, "copied")) == [
            {"id": 1, "old": "x", "color": None, "more": None},
            {"id": None, "old": None, "color": "blue", "more": None},
        ]


def test_a_running_job_reads_values_of_a_schema_that_came_later(
    kafka: KafkaServer, registry: RegistryServer, schemas: Schemas, topics: Topics, name: str
) -> None:
    """Columns that the job names are there as soon as they are written; others are left out."""
    topics.create(name)
    source = url_of(kafka, registry, name, "protobuf")
    text = 'syntax = "proto3";\nmessage R { int64 id = 1; }\n'
    later = 'syntax = "proto3";\nmessage R { int64 number = 1; string color = 2; int64 x = 3; }\n'
    with TestDriver(copying(source, "copied", {"id": int, "color": str})) as driver:
        topics.send(name, schemas.protobuf(name, text, [{"id": 5}]))
        driver.run()
        topics.send(name, schemas.protobuf(name, later, [{"number": 6, "color": "red", "x": 1}]))
        driver.run()
        assert own(rows_in(driver.bus, "copied")) == [
            {"id": 5, "color": None},
            {"id": None, "color": "red"},
        ]
    with TestDriver(copying(source, "copied")) as driver:
        driver.run()
        found = own(rows_in(driver.bus, "copied"))
    assert found == [{"number": 5, "color": "", "x": 0}, {"number": 6, "color": "red", "x": 1}]


def test_logical_types_times_and_maps_are_columns(
    kafka: KafkaServer, registry: RegistryServer, schemas: Schemas, topics: Topics, name: str
) -> None:
    topics.create(f"{name}.a")
    topics.create(f"{name}.p")
    fields = [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
    ]
    text = json.dumps({"type": "record", "name": "R", "fields": fields})
    row = {"at": AT, "id": "0" * 8, "kind": "B", "counts": {"x": 1}}
    topics.send(f"{name}.a", schemas.avro(f"{name}.a", text, [row]))
    proto = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum K { A = 0; B = 1; }
message R { google.protobuf.Timestamp at = 1; google.protobuf.StringValue id = 2; K kind = 3;
  map<string, int32> counts = 4; }
"""
    given = {"at": AT, "id": {"value": "0" * 8}, "kind": 1, "counts": {"x": 1}}
    topics.send(f"{name}.p", schemas.protobuf(f"{name}.p", proto, [given]))
    wanted = {**row, "counts": [{"key": "x", "value": 1}]}
    for form, topic in (("avro", f"{name}.a"), ("protobuf", f"{name}.p")):
        with TestDriver(copying(url_of(kafka, registry, topic, form), "copied")) as driver:
            driver.run()
            assert own(rows_in(driver.bus, "copied")) == [wanted]


@pytest.mark.parametrize("form", ["avro", "protobuf", "jsonschema", "arrow"])
def test_bad_bytes_are_dead_letters_with_their_place_and_the_bytes(
    kafka: KafkaServer,
    registry: RegistryServer,
    schemas: Schemas,
    topics: Topics,
    name: str,
    form: str,
) -> None:
    topics.create(name)
    kinds: Any = {"user": str, "n": int}
    if form == "arrow":
        good = [arrow_row(row) for row in ROWS]
    else:
        good = written(schemas, form, name, TEXTS[form], ROWS)
    bad = [b'{"user": "x"}', good[0][:-3], good[0][:5] + b"\xff\xff", b"\x00\x7f\xff\xff\xff\x00"]
    if form == "jsonschema":
        bad.pop()  # no schema is asked for
    topics.send(name, [good[0], *bad, good[1]])
    source = url_of(kafka, registry, name, form)
    with TestDriver(copying(source, "copied", kinds, on_error="dead_letter")) as driver:
        driver.run()
        found = own(rows_in(driver.bus, "copied"))
        letters = rows_in(driver.bus, "copying.dead")
    assert found == [{"user": row["user"], "n": row["n"]} for row in ROWS]
    assert len(letters) == len(bad)
    for at, letter in enumerate(letters, 1):
        assert f"Kafka topic {name} partition 0 offset {at}" in str(letter)
    with (
        TestDriver(copying(source, "copied", kinds)) as driver,
        pytest.raises(InvalidInputError, match=f"topic {name} partition 0 offset 1: "),
    ):
        driver.run()


def arrow_row(row: dict[str, Any]) -> bytes:
    batch = pa.RecordBatch.from_pylist([row])
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(out.getvalue().to_pybytes())


def test_arrow_is_read_and_written(kafka: KafkaServer, topics: Topics, name: str) -> None:
    topics.create(name)
    topics.send(name, [arrow_row(row) for row in ROWS])
    target = kafka.url(f"{name}.out", format="arrow", key="user")
    columns = {"user": str, "n": int, "price": float, "more": int}
    with TestDriver(copying(kafka.url(name, format="arrow"), target, columns)) as driver:
        driver.run()
    values = [one.value for one in topics.read(f"{name}.out") if one.value is not None]
    found = [row for value in values for row in pa.ipc.open_stream(value).read_all().to_pylist()]
    wanted = [{**row, "more": None} for row in ROWS]
    assert found == [{one: row[one] for one in columns} for row in wanted]


def test_a_schema_that_others_could_not_read_is_refused_before_anything_is_sent(
    kafka: KafkaServer, registry: RegistryServer, schemas: Schemas, topics: Topics, name: str
) -> None:
    topics.create(name)
    topics.send(name, [{"user": "ann", "n": 1}])
    target = url_of(kafka, registry, f"{name}.out", "avro")
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "string"}]})
    schemas.register(f"{name}.out", "AVRO", text)
    schemas.client.set_compatibility(f"{name}.out-value", "FULL")
    with (
        TestDriver(copying(kafka.url(name), target, {"user": str, "n": int})) as driver,
        pytest.raises(InvalidInputError, match="refuses the schema of the rows for"),
    ):
        driver.run()
    assert not topics.exists(f"{name}.out") or topics.read(f"{name}.out") == []


@pytest.mark.parametrize("form", ["avro", "protobuf", "jsonschema"])
def test_rows_are_written_by_the_newest_schema_where_none_shall_be_registered(
    kafka: KafkaServer,
    registry: RegistryServer,
    schemas: Schemas,
    topics: Topics,
    name: str,
    form: str,
) -> None:
    topics.create(name)
    topics.send(name, ROWS)
    more = {"auto__register__schemas": "false"}
    target = url_of(kafka, registry, f"{name}.out", form, **more)
    job = copying(kafka.url(name), target, {"user": str, "n": int})
    with TestDriver(job) as driver, pytest.raises(InvalidInputError, match="has no schema for"):
        driver.run()
    simple: dict[str, str] = {
        "avro": '{"type": "record", "name": "U", "fields": [{"name": "n", "type": "long"}, '
        '{"name": "user", "type": "string"}]}',
        "protobuf": 'syntax = "proto3";\nmessage U { int64 n = 9; string user = 4; }\n',
        "jsonschema": '{"type": "object", "properties": {"n": {"type": "integer"}, '
        '"user": {"type": "string"}}}',
    }
    kind = {"avro": "AVRO", "protobuf": "PROTOBUF", "jsonschema": "JSON"}[form]
    number = schemas.register(f"{name}.out", kind, simple[form])
    with TestDriver(job) as driver:
        driver.run()
    values = [one.value for one in topics.read(f"{name}.out") if one.value is not None]
    assert [value[:5] for value in values] == [b"\0" + number.to_bytes(4, "big")] * 2
    read = schemas.read(form, f"{name}.out", values)
    assert [(row["user"], int(row["n"])) for row in read] == [("ann", 7), ("bob", -1)]


def test_a_registry_that_does_not_answer_holds_a_job_up(
    kafka: KafkaServer, topics: Topics, schemas: Schemas, registry: RegistryServer, name: str
) -> None:
    topics.create(name)
    topics.send(name, schemas.avro(name, TEXTS["avro"], ROWS))
    source = url_of(kafka, registry, name, "avro", socket__timeout__ms="500")
    with TestDriver(copying(source, "copied", {"user": str})) as driver:
        registry.pause()
        try:
            with pytest.raises(LogAwayError, match=r"schema registry at .* does not answer"):
                driver.run()
        finally:
            registry.resume()
        driver.run()
        assert own(rows_in(driver.bus, "copied")) == [{"user": "ann"}, {"user": "bob"}]
