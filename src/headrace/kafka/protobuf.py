"""Values in Protobuf: read by descriptors that are made of the registered schema, and written.

A schema is the text of a ``.proto`` file, which Protobuf's own compiler reads in a process of its
own, or a descriptor in base64, as Confluent's Python client registers it. Fields are resolved by
their numbers: values are read by the newest schema of the topic where that has the same message.
"""

from __future__ import annotations

import base64
import binascii
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace import extras
from headrace.errors import InvalidInputError
from headrace.kafka.registered import (
    UNFIT,
    Reader,
    RegisteredDecoder,
    Wrong,
    rows_of,
    unwritable,
)
from headrace.kafka.registry import Registered, headed

COMPILE_S = 60.0
_USE = "a topic with Protobuf"
_FILE = "headrace.proto"
_WELL_KNOWN = ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
_TIMESTAMP, _DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
_WRAPPER = re.compile(r"google\.protobuf\.(?:Bool|Bytes|Double|Float|String|U?Int(?:32|64))Value")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_UTC = pa.timestamp("us", tz="UTC")
_WRITTEN = {
    pa.bool_(): "bool",
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32()), "int32"),
    **dict.fromkeys((pa.uint8(), pa.uint16(), pa.uint32()), "uint32"),
    pa.int64(): "int64",
    pa.uint64(): "uint64",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    _UTC: _TIMESTAMP,
    pa.duration("us"): _DURATION,
}


class ProtobufSchema:
    """The messages of a registered schema.

    Args:
        schema: of the registry.

    Raises:
        InvalidInputError: it is not one of Protobuf, or a library is not installed.
    """

    def __init__(self, schema: Registered) -> None:
        self._make = extras.load("google.protobuf.message_factory", _USE).GetMessageClass
        pools = extras.load("google.protobuf.descriptor_pool", _USE)
        self._number, pool = schema.number, pools.DescriptorPool()
        try:
            for one in _files(schema):
                pool.AddSerializedFile(one.SerializeToString())
                last = one.name
            self.file = pool.FindFileByName(last)
        except (TypeError, ValueError, KeyError) as error:
            raise InvalidInputError(
                f"schema {schema.number} is not one of Protobuf: {error}"
            ) from error
        self.messages = list(self.file.message_types_by_name.values())
        if not self.messages:
            raise InvalidInputError(f"schema {schema.number} has no message")

    def named(self, name: str) -> Any:
        """Return the descriptor of a message; ``None``: there is none."""
        waiting = list(self.messages)
        while waiting:
            one = waiting.pop()
            if one.full_name == name:
                return one
            waiting += one.nested_types
        return None

    def placed(self, places: Sequence[int]) -> Any:
        """Return the descriptor of a message by its place in the file, and in those around it.

        Raises:
            InvalidInputError: there is none.
        """
        try:
            found = self.messages[places[0]]
            for place in places[1:]:
                found = found.nested_types[place]
        except IndexError as error:
            raise InvalidInputError(
                f"found the message at {list(places)}, which schema {self._number} does not have"
            ) from error
        return found

    def made(self, descriptor: Any) -> Any:
        """Return the class of a message."""
        return self._make(descriptor)


def _files(schema: Registered) -> list[Any]:
    """Return the descriptors of a schema's file and of those that it imports, itself last."""
    kinds = extras.load("google.protobuf.descriptor_pb2", _USE)
    own = _of_base64(kinds, schema.text, _FILE)
    if own is None:
        return _compiled(kinds, schema)
    files = [_of_base64(kinds, text, name) for name, text in schema.imports.items()]
    if None in files:
        raise InvalidInputError(
            f"schema {schema.number} is a descriptor, and one that it imports is text; register "
            "both in one form"
        )
    return [*_well_known(kinds), *files, own]


def _well_known(kinds: Any) -> list[Any]:
    found = []
    for name in _WELL_KNOWN:
        module = extras.load(f"google.protobuf.{name}_pb2", _USE)
        found.append(kinds.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb))
    return found


def _of_base64(kinds: Any, text: str, name: str) -> Any:
    try:
        found = kinds.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, extras.load("google.protobuf.message", _USE).DecodeError):
        return None
    found.name = found.name if name == _FILE and found.name else name
    return found


def _compiled(kinds: Any, schema: Registered) -> list[Any]:
    """Have Protobuf's compiler read a schema; what is imported is beside it."""
    tools = extras.load("grpc_tools", _USE)
    with tempfile.TemporaryDirectory(prefix="headrace-proto-") as place:
        folder = Path(place)
        for name, text in {**schema.imports, _FILE: schema.text}.items():
            path = (folder / name).resolve()
            if not path.is_relative_to(folder.resolve()):
                raise InvalidInputError(
                    f"schema {schema.number} imports {name!r}, a file elsewhere"
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        given = Path(tools.__file__).parent / "_proto"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"-I{given}"]
        command += ["--include_imports", f"--descriptor_set_out={folder / 'out'}", _FILE]
        ended = subprocess.run(command, capture_output=True, timeout=COMPILE_S, check=False)
        if ended.returncode:
            said = ended.stderr.decode(errors="replace").replace(f"{_FILE}:", "").strip()
            raise InvalidInputError(f"schema {schema.number} is not one of Protobuf: {said[:500]}")
        return list(kinds.FileDescriptorSet.FromString((folder / "out").read_bytes()).file)


def columns(schema: Registered) -> pa.Schema:
    """Return the columns of values of a schema: of its first message.

    Raises:
        InvalidInputError: a field has a type that no column can have.
    """
    return pa.schema(_fields(ProtobufSchema(schema).messages[0], ()))


def _fields(descriptor: Any, around: tuple[str, ...]) -> list[tuple[str, pa.DataType]]:
    if descriptor.full_name in around:
        raise InvalidInputError(
            f"message {descriptor.full_name} is within itself, which no column can be; name the "
            "columns that are wanted in schema="
        )
    inner = (*around, descriptor.full_name)
    return [(field.name, _type(field, inner)) for field in descriptor.fields]


def _type(field: Any, around: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        parts = [(name, _one(entry[name], around)) for name in ("key", "value")]
        return pa.list_(pa.struct(parts))
    one = _one(field, around)
    return pa.list_(one) if field.is_repeated else one


def _one(field: Any, around: tuple[str, ...]) -> pa.DataType:
    if field.message_type is not None:
        name = field.message_type.full_name
        if name == _TIMESTAMP:
            return _UTC
        if name == _DURATION:
            return pa.duration("us")
        if _WRAPPER.fullmatch(name):
            return _one(field.message_type.fields_by_name["value"], around)
        return pa.struct(_fields(field.message_type, around))
    plain = {
        field.CPPTYPE_BOOL: pa.bool_(),
        field.CPPTYPE_INT32: pa.int32(),
        field.CPPTYPE_INT64: pa.int64(),
        field.CPPTYPE_UINT32: pa.uint32(),
        field.CPPTYPE_UINT64: pa.uint64(),
        field.CPPTYPE_FLOAT: pa.float32(),
        field.CPPTYPE_DOUBLE: pa.float64(),
        field.CPPTYPE_ENUM: pa.string(),
    }
    if field.cpp_type in plain:
        return plain[field.cpp_type]
    return pa.binary() if field.type == field.TYPE_BYTES else pa.string()


def _is_map(field: Any) -> bool:
    kind = field.message_type
    return kind is not None and field.is_repeated and bool(kind.GetOptions().map_entry)


class ProtobufDecoder(RegisteredDecoder):
    """Reads Protobuf."""

    libraries = ("google.protobuf.message_factory", "grpc_tools")

    def reader(self, schema: Registered, newest: Registered | None, kinds: pa.Schema) -> Reader:
        """Return what reads values of a schema."""
        writer = ProtobufSchema(schema)
        target = writer if newest is None else ProtobufSchema(newest)
        known: dict[bytes, tuple[Any, dict[str, Callable[[Any], Any]]]] = {}

        def of(head: bytes, places: Sequence[int]) -> tuple[Any, dict[str, Callable[[Any], Any]]]:
            if head not in known:
                own = writer.placed(places)
                found = target.named(own.full_name) or own
                missing = {one for one in kinds.names if one not in found.fields_by_name}
                if missing & set(own.fields_by_name):
                    found = own  # a column that the newest one no longer has
                known[head] = (
                    target.made(found) if found is not own else writer.made(own),
                    _getters(found, kinds),
                )
            return known[head]

        def read(values: Sequence[bytes]) -> tuple[pa.RecordBatch, Wrong]:
            records: list[Any] = []
            wrong: Wrong = []
            for at, value in enumerate(values):
                try:
                    head, places = _places(value)
                    make, getters = of(head, places)
                    message = make.FromString(value[len(head) :])
                    records.append({name: get(message) for name, get in getters.items()})
                except Exception as error:  # noqa: BLE001 - bytes that are no message raise anything
                    said = getattr(error, "message", "") or f"no message of its schema: {error}"
                    wrong.append((at, InvalidInputError(said)))
                    records.append(None)
            return rows_of(records, kinds, dict.get, wrong)

        return read


def _places(value: bytes) -> tuple[bytes, list[int]]:
    """Return the bytes before a message that say which one of the schema it is, and what they say.

    They are varints, as Confluent writes them: how many, and then so many places; 0 is the first.
    """
    if value[:1] == b"\0":
        return b"\0", [0]
    count, at = _varint(value, 0)
    places = []
    if not 0 < count <= len(value):
        raise ValueError("it does not say which message it is")
    for _ in range(count):
        place, at = _varint(value, at)
        if place < 0:
            raise ValueError("it does not say which message it is")
        places.append(place)
    return value[:at], places


def _varint(value: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        if at >= len(value) or shift > 28:
            raise ValueError("it does not say which message it is")
        found |= (value[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if value[at - 1] < 128:
            return (found >> 1) ^ -(found & 1), at


def _getters(descriptor: Any, kinds: pa.Schema) -> dict[str, Callable[[Any], Any]]:
    fields = descriptor.fields_by_name
    return {
        field.name: _getter(fields[field.name], field.type)
        if field.name in fields
        else lambda message: None
        for field in kinds
    }


def _getter(field: Any, kind: pa.DataType) -> Callable[[Any], Any]:
    """Return what takes a field out of a message; one that is not there is null."""
    name = field.name
    if _is_map(field):
        item = kind.value_type if pa.types.is_list(kind) else None
        inner = item.field(1).type if item is not None and pa.types.is_struct(item) else pa.null()
        value = _value(field.message_type.fields_by_name["value"], inner)
        return lambda message: [
            {"key": key, "value": value(getattr(message, name)[key])}
            for key in sorted(getattr(message, name))
        ]
    if field.is_repeated:
        each = _value(field, kind.value_type if pa.types.is_list(kind) else kind)
        return lambda message: [each(one) for one in getattr(message, name)]
    change = _value(field, kind)
    if field.has_presence:
        return lambda message: change(getattr(message, name)) if message.HasField(name) else None
    return lambda message: change(getattr(message, name))


def _value(field: Any, kind: pa.DataType) -> Callable[[Any], Any]:
    if field.enum_type is not None:
        numbers = {number: one.name for number, one in field.enum_type.values_by_number.items()}
        return lambda found: numbers.get(found, str(found))
    if field.message_type is None:
        return lambda found: found
    name = field.message_type.full_name
    if name == _TIMESTAMP:
        return lambda found: found.ToDatetime(tzinfo=UTC)
    if name == _DURATION:
        return lambda found: found.ToTimedelta()
    if _WRAPPER.fullmatch(name):
        return lambda found: found.value
    getters = _getters(
        field.message_type, pa.schema(list(kind) if pa.types.is_struct(kind) else [])
    )
    return lambda found: {one: get(found) for one, get in getters.items()}


def mistakes(schema: pa.Schema) -> list[str]:
    """Return what rows of a schema cannot be written as."""
    return unwritable(schema, "Protobuf", _NAME, lambda kind, name: _said(kind, name, {}))


def text_of(schema: pa.Schema, name: str, newest: Registered | None) -> str:
    """Return the schema of rows: numbers of fields are those of the newest one, or new.

    Args:
        schema: of the rows.
        name: of the message where none is registered.
        newest: the newest one that is.
    """
    numbers: dict[str, int] = {}
    package = ""
    if newest is not None:
        known = ProtobufSchema(newest)
        first = known.messages[0]
        name, package = first.name, known.file.package
        numbers = {field.name: field.number for field in first.fields}
    lines = ['syntax = "proto3";', *([f"package {package};"] if package else [])]
    nested: dict[str, list[str]] = {}
    fields = _numbered(schema, numbers, nested, "")
    if any(kind in str(fields) + str(nested) for kind in (_TIMESTAMP,)):
        lines.append('import "google/protobuf/timestamp.proto";')
    if _DURATION in str(fields) + str(nested):
        lines.append('import "google/protobuf/duration.proto";')
    lines += [f"message {name} {{", *(f"  {line}" for line in fields)]
    for inner, its in nested.items():
        lines += [f"  message {inner} {{", *(f"    {line}" for line in its), "  }"]
    return "\n".join([*lines, "}", ""])


def _numbered(
    fields: Sequence[pa.Field],
    numbers: Mapping[str, int],
    nested: dict[str, list[str]],
    around: str,
) -> list[str]:
    following = max([0, *numbers.values()]) + 1
    lines = []
    for field in fields:
        number = numbers.get(field.name)
        if number is None:
            number, following = following, following + 1
        lines.append(f"{_said(field.type, around + field.name, nested)} {field.name} = {number};")
    return lines


def _said(kind: pa.DataType, name: str, nested: dict[str, list[str]]) -> str:
    if pa.types.is_list(kind):
        if pa.types.is_list(kind.value_type):
            raise InvalidInputError(f"column {name!r} is {kind}, which Protobuf does not have")
        return _said(kind.value_type, name, nested).replace("optional", "repeated", 1)
    if kind in _WRITTEN:
        return f"optional {_WRITTEN[kind]}"
    if pa.types.is_struct(kind):
        message = f"{name[:1].upper()}{name[1:]}Record"
        nested[message] = _numbered(list(kind), {}, nested, f"{name}_")
        return f"optional {message}"
    raise InvalidInputError(f"column {name!r} is {kind}, which Protobuf does not have; cast it")


def row_writer(schema: Registered) -> Callable[[dict[str, Any]], bytes]:
    """Return what writes a row as the first message of a schema, with its number before it."""
    known = ProtobufSchema(schema)
    kind, head = known.messages[0], headed(schema.number) + b"\0"
    make, names = known.made(kind), set(kind.fields_by_name)

    def write(row: dict[str, Any]) -> bytes:
        given = {name: value for name, value in row.items() if value is not None and name in names}
        try:
            return head + bytes(make(**_without_nulls(given)).SerializeToString(deterministic=True))
        except UNFIT as error:
            raise InvalidInputError(
                f"a row does not fit schema {schema.number} of Protobuf: {error}"
            ) from error

    return write


def _without_nulls(row: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is null, also within: that is how Protobuf has it."""
    return {name: _without(value) for name, value in row.items() if value is not None}


def _without(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _without_nulls(value)
    if isinstance(value, list):
        return [_without(one) for one in value if one is not None]
    return value
