"""The formats of values by their names: what reads them, their columns, and what writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.bus import StreamSpec
from headrace.errors import InvalidInputError
from headrace.kafka import avro, json_schema, protobuf
from headrace.kafka.address import AUTO_REGISTER, REGISTERED, TopicAddress
from headrace.kafka.arrow_rows import ArrowDecoder, arrow_encoder
from headrace.kafka.avro import AvroDecoder
from headrace.kafka.formats import (
    COMMON,
    VALUE,
    Encoder,
    JsonDecoder,
    MessageDecoder,
    RawDecoder,
    json_encoder,
    own_names,
    raw_encoder,
    values_of,
)
from headrace.kafka.json_schema import JsonSchemaDecoder
from headrace.kafka.protobuf import ProtobufDecoder
from headrace.kafka.registry import KINDS, Registered, headed, registry_of

_DECODERS: dict[str, type[MessageDecoder]] = {
    "arrow": ArrowDecoder,
    "avro": AvroDecoder,
    "json": JsonDecoder,
    "jsonschema": JsonSchemaDecoder,
    "protobuf": ProtobufDecoder,
    "raw": RawDecoder,
}


_REGISTERED: dict[str, Any] = {"avro": avro, "jsonschema": json_schema, "protobuf": protobuf}


def format_of(address: TopicAddress, schema: pa.Schema | None) -> str:
    """Return the format of a topic that is read: JSON where it has columns, else raw."""
    own = [] if schema is None else [one for one in schema if one.name not in COMMON.names]
    is_raw = not own or own == [pa.field(VALUE, pa.binary())]
    return address.option("format") or ("raw" if is_raw else "json")


def decoder_of(spec: StreamSpec, address: TopicAddress) -> MessageDecoder:
    """Return what makes columns of a topic's messages."""
    return _DECODERS[format_of(address, spec.schema)](spec, address)


def columns_of(address: TopicAddress, schema: pa.Schema | None) -> pa.Schema:
    """Return the columns that a topic is read as: those of its values, and the common ones.

    Those that the graph does not give are those of the newest schema in the registry.

    Raises:
        InvalidInputError: the columns do not go with the format.
        LogAwayError: the registry does not answer.
    """
    form = format_of(address, schema)
    if form == "raw":
        return pa.schema([(VALUE, pa.binary()), *COMMON])
    if schema is None and form in REGISTERED:
        schema = _newest_columns(address, form)
    if schema is None:
        raise InvalidInputError(
            f"{address.said} has {form}, whose columns nobody gives; give the input schema="
        )
    own = [field for field in schema if field.name not in COMMON.names]
    missing = [name for name in address.key if name not in schema.names]
    if missing:
        raise InvalidInputError(
            f"{address.said}: key columns {missing} are not in the schema; found {schema.names}"
        )
    if not own:
        raise InvalidInputError(f"{address.said}: schema= has no column of the {form} itself")
    return pa.schema([*own, *COMMON])


def _newest_columns(address: TopicAddress, form: str) -> pa.Schema:
    registry = registry_of(address)
    newest = registry.newest(address.subject)
    if newest is None or newest.kind != KINDS[form]:
        raise InvalidInputError(
            f"{address.said}: the schema registry at {registry.url} has no schema of {form} for "
            f"{address.subject!r}; register one, or give the input schema="
        )
    found: pa.Schema = _REGISTERED[form].columns(newest)
    return found


def column_mistakes(address: TopicAddress, schema: pa.Schema) -> list[str]:
    """Return what rows cannot be written as."""
    form = address.option("format", "json")
    own = pa.schema([schema.field(name) for name in own_names(schema)])
    if form in REGISTERED:
        found: list[str] = _REGISTERED[form].mistakes(own)
        return found
    if form == "raw" and (VALUE not in schema.names or not _is_bytes(schema.field(VALUE).type)):
        return ["format is raw; expected a column 'value' of bytes or text"]
    return []


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_string(kind))


_ENCODERS: dict[Any, Encoder] = {}


def encoder_of(address: TopicAddress, schema: pa.Schema) -> Encoder:
    """Return what makes values of rows; null for a tombstone.

    A schema that rows are written by is registered when it is first asked for.

    Raises:
        InvalidInputError: the registry refuses the schema, or rows do not fit the one it has.
        LogAwayError: the registry does not answer.
    """
    form, key = address.option("format", "json"), address.key
    if form == "raw":
        return raw_encoder
    if form == "arrow":
        return arrow_encoder(schema, key)
    if form == "json":
        return json_encoder(schema, key)
    known = (address, str(schema))
    if known not in _ENCODERS:
        _ENCODERS[known] = _registered_encoder(address, schema, form, key)
    return _ENCODERS[known]


def _registered_encoder(
    address: TopicAddress, schema: pa.Schema, form: str, key: Sequence[str]
) -> Encoder:
    registry, kind = registry_of(address), KINDS[form]
    module: Any = _REGISTERED[form]
    own = pa.schema([schema.field(name) for name in own_names(schema)])
    newest = registry.newest(address.subject)
    if newest is not None and newest.kind != kind:
        raise InvalidInputError(
            f"{address.said}: schemas of {address.subject!r} in the registry at {registry.url} are "
            f"of {newest.kind}, expected {kind}; correct format="
        )
    if address.registers:
        text = module.text_of(own, re.sub(r"\W", "_", f"_{address.topic}").lstrip("_"), newest)
        schema_used = Registered(registry.register(address.subject, kind, text), kind, text, {})
    elif newest is None:
        raise InvalidInputError(
            f"{address.said}: the registry at {registry.url} has no schema for "
            f"{address.subject!r}, and {AUTO_REGISTER} is false; register one"
        )
    else:
        schema_used = newest
        there = module.columns(newest).names
        if lost := [name for name in own.names if name not in there]:
            raise InvalidInputError(
                f"{address.said}: columns {lost} are not in the newest schema of "
                f"{address.subject!r}, and {AUTO_REGISTER} is false; found {there}: leave them "
                "out, or register a schema that has them"
            )
    if form == "jsonschema":
        encode, head = json_encoder(schema, key), headed(schema_used.number)
        return lambda batch: pc.binary_join_element_wise(head, encode(batch), b"")
    return values_of(schema, key, module.row_writer(schema_used))
