"""The type of a store's values as data: described at deploy, read without the user's code.

``describe`` makes plain JSON of what users declare; ``ValueSchema`` turns stored MessagePack into
Arrow columns by that description alone. What has no column type of its own, such as ``Any`` or a
union of several kinds, becomes JSON text. ``value_changes`` says whether values stored under one
type can be read as another: by field name, where an added field needs a default and no kind may
change.
"""

from __future__ import annotations

import base64
import datetime
import decimal
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import inspect

from headrace.errors import CorruptDataError

Description = dict[str, Any]

_PLAIN: dict[type[inspect.Type], str] = {
    inspect.BoolType: "bool",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.BytesType: "bytes",
    inspect.ByteArrayType: "bytes",
    inspect.MemoryViewType: "bytes",
    inspect.DateTimeType: "datetime",
    inspect.DateType: "date",
    inspect.TimeDeltaType: "timedelta",
}
_TEXTS: dict[type[inspect.Type], str] = {
    inspect.UUIDType: "UUID",
    inspect.TimeType: "time",
    inspect.DecimalType: "Decimal",
}
"""What is stored as text, but not any text."""

_LISTS = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType)
_RECORDS = (inspect.StructType, inspect.DataclassType, inspect.NamedTupleType)
_ARROW: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "str": pa.string(),
    "bytes": pa.binary(),
    "datetime": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
    "timedelta": pa.duration("us"),
    "json": pa.string(),
}
JSON: Description = {"kind": "json"}


def describe(kind: Any) -> Description:
    """Return a type as JSON; ``json`` where values of several kinds may stand."""
    try:
        return _describe(inspect.type_info(kind), ())
    except TypeError:  # a type that msgspec takes only by hooks
        return JSON


def _describe(info: inspect.Type, above: tuple[type, ...]) -> Description:
    if isinstance(info, inspect.Metadata):
        return _describe(info.type, above)
    if type(info) in _PLAIN:
        return {"kind": _PLAIN[type(info)]}
    if type(info) in _TEXTS:
        return {"kind": "str", "text": _TEXTS[type(info)]}
    if isinstance(info, inspect.UnionType):
        options = [one for one in info.types if not isinstance(one, inspect.NoneType)]
        if len(options) > 1:
            return JSON
        only = _describe(options[0], above)
        return only if only == JSON else only | {"optional": True}
    if isinstance(info, inspect.LiteralType):
        return _choice(info.values)
    if isinstance(info, inspect.EnumType):
        return _choice([member.value for member in info.cls])
    if isinstance(info, _LISTS):
        return {"kind": "list", "item": _describe(info.item_type, above)}
    if isinstance(info, inspect.DictType):
        key, value = _describe(info.key_type, above), _describe(info.value_type, above)
        return {"kind": "map", "key": key, "value": value} if key != JSON else JSON
    if isinstance(info, inspect.TupleType):
        items = [_describe(item, above) for item in info.item_types]
        fields = [{"name": f"_{n}", "type": item} for n, item in enumerate(items)]
        return {"kind": "record", "array": True, "fields": fields} if fields else JSON
    if isinstance(info, (*_RECORDS, inspect.TypedDictType)):
        return _record(info, above)
    return JSON


def _choice(values: Iterable[Any]) -> Description:
    """One of several values, which are all integers or all texts, but for null."""
    given = sorted({value for value in values if value is not None}, key=str)
    kinds = {type(value) for value in given}
    known = {int: "int", str: "str"}
    if len(kinds) != 1 or not kinds <= known.keys():
        return JSON
    found: Description = {"kind": known[kinds.pop()], "values": given}
    return found | ({"optional": True} if None in values else {})


def _record(info: Any, above: tuple[type, ...]) -> Description:
    if info.cls in above or not info.fields:  # a type within itself has no columns
        return JSON
    above = (*above, info.cls)
    fields = [
        {"name": field.name, "stored": field.encode_name, "type": _describe(field.type, above)}
        | _default(field)
        for field in info.fields
    ]
    is_array = isinstance(info, inspect.NamedTupleType) or bool(getattr(info, "array_like", False))
    made = {"kind": "record", "array": is_array, "fields": fields}
    if (tag := getattr(info, "tag", None)) is not None:
        made |= {"tag": tag} | ({"tagged": True} if is_array else {})
    return made | ({"strict": True} if getattr(info, "forbid_unknown_fields", False) else {})


def _default(field: Any) -> Description:
    """A plain default: entries written before the field existed show it."""
    found = getattr(field, "default", None)
    given: Description = {} if field.required else {"required": False}
    return given | ({"default": found} if isinstance(found, bool | int | float | str) else {})


class ValueSchema:
    """How stored values look as columns: the fields of a record, else one column.

    Args:
        description: of the declared type, from ``describe``.
        taken: names that the columns of the key have; a field of the same name is prefixed.
    """

    def __init__(self, description: Description, taken: Sequence[str] = ()) -> None:
        self._description = description
        self._flat = description["kind"] == "record"
        names = [f["name"] for f in description["fields"]] if self._flat else ["value"]
        kinds = [f["type"] for f in description["fields"]] if self._flat else [description]
        self._names = [f"value.{name}" if name in taken else name for name in names]
        self.schema = pa.schema(
            [(name, arrow_type(kind)) for name, kind in zip(self._names, kinds, strict=True)]
        )
        self._convert = _converter(description)

    def values(self, data: Sequence[bytes]) -> list[Any]:
        """Return stored values as Python objects of the declared shape: records as dicts.

        Raises:
            CorruptDataError: bytes that are no MessagePack.
        """
        return [self._convert(_decode(one)) for one in data]

    def columns(self, data: Sequence[bytes]) -> list[pa.Array]:
        """Return stored values as arrays, one for each field of ``schema``; shape (n,).

        Raises:
            CorruptDataError: a value that does not fit the declared type.
        """
        rows = self.values(data)
        if self._flat:
            stems = [field["name"] for field in self._description["fields"]]
            lists = [[None if row is None else row[name] for row in rows] for name in stems]
        else:
            lists = [rows]
        try:
            pairs = zip(lists, self.schema, strict=True)
            return [pa.array(one, field.type) for one, field in pairs]
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise CorruptDataError(
                f"a stored value does not fit the declared type {self.schema}: {error}; deploy the "
                "job again if its type has changed"
            ) from error


def arrow_type(description: Description) -> pa.DataType:
    """Return the Arrow type that values of a described type have as a column."""
    kind = description["kind"]
    if kind == "list":
        return pa.list_(arrow_type(description["item"]))
    if kind == "map":
        return pa.map_(arrow_type(description["key"]), arrow_type(description["value"]))
    if kind == "record":
        return pa.struct([(f["name"], arrow_type(f["type"])) for f in description["fields"]])
    return _ARROW[kind]


def _decode(data: bytes) -> Any:
    try:
        return msgspec.msgpack.decode(data)
    except msgspec.DecodeError as error:
        raise CorruptDataError(f"a stored value is no MessagePack: {error}") from error


def _converter(description: Description) -> Callable[[Any], Any]:
    """From plain MessagePack to what ``pa.array`` takes for the described type."""
    kind = description["kind"]
    made = {
        "datetime": _moment,
        "date": _text_of(datetime.date),
        "timedelta": _text_of(datetime.timedelta),
        "float": float,
        "json": json_text,
        "str": _text,
    }.get(kind)
    if kind == "list":
        item = _converter(description["item"])
        made = lambda value: [item(one) for one in value]  # noqa: E731
    elif kind == "map":
        key, inner = _converter(description["key"]), _converter(description["value"])
        made = lambda value: [(key(k), inner(v)) for k, v in value.items()]  # noqa: E731
    elif kind == "record":
        made = _record_converter(description)
    if made is None:
        return lambda value: value
    if kind == "json":
        return made
    chosen = made
    return lambda value: None if value is None else chosen(value)


def _record_converter(description: Description) -> Callable[[Any], Any]:
    fields = [
        (f["name"], f.get("stored", f["name"]), _converter(f["type"]), f.get("default"))
        for f in description["fields"]
    ]
    skipped = int(bool(description.get("tagged")))

    def from_map(value: Any) -> Any:
        return {name: convert(value.get(stored, other)) for name, stored, convert, other in fields}

    def from_array(value: Any) -> Any:
        given = value[skipped:]
        return {
            name: convert(given[n] if n < len(given) else other)
            for n, (name, _, convert, other) in enumerate(fields)
        }

    return from_array if description["array"] else from_map


def _moment(value: Any) -> datetime.datetime:
    found = value if isinstance(value, datetime.datetime) else msgspec.convert(value, _MOMENT)
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


_MOMENT = datetime.datetime


def _text_of(kind: Any) -> Callable[[Any], Any]:
    return lambda value: msgspec.convert(value, kind)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def json_text(value: Any) -> str:
    """Return any plain value as JSON, the same for the same value."""
    return msgspec.json.encode(plain(value), order="sorted").decode()


def plain(value: Any) -> Any:
    """Return a value in kinds that JSON has: bytes as base64, moments as ISO 8601, keys as text."""
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, datetime.datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
        return moment.astimezone(datetime.UTC).isoformat()
    if isinstance(value, datetime.date | datetime.time | decimal.Decimal):
        return str(value)
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, dict):
        return {_key_text(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value


def _key_text(key: Any) -> str:
    shown = plain(key)
    return shown if isinstance(shown, str) else json_text(shown)


_ALSO = {("int", "float")}


def value_changes(old: Description, new: Description) -> list[str]:
    """Say what keeps stored values from being read as a new type; empty when nothing does.

    Args:
        old: what they were stored as, from ``value_types.describe``.
        new: what they are to be read as. Where one is of no kind of its own, anything goes.
    """
    return _changes("its values", old, new)


def _changes(what: str, old: Description, new: Description) -> list[str]:
    if JSON["kind"] in (old["kind"], new["kind"]):
        return []
    was, now = old["kind"], new["kind"]
    if was != now and (was, now) not in _ALSO:
        return [f"{what} were {_words(old)}, are now {_words(new)}: give what is new another name"]
    found = []
    if old.get("optional") and not new.get("optional"):
        found.append(f"{what} could be null, and now cannot: let them, as in {now} | None")
    if (text := new.get("text")) not in (None, old.get("text")):
        known = old.get("text", "str")
        found.append(f"{what} were {known}, are now {text}: give what is new another name")
    if "values" in new:
        found += _choices(what, old, new)
    if now == "list":
        return found + _changes(f"items of {what}", old["item"], new["item"])
    if now == "map":
        keys = _changes(f"keys of {what}", old["key"], new["key"])
        return found + keys + _changes(f"values of {what}", old["value"], new["value"])
    if now == "record":
        if {"tag"} <= old.keys() & new.keys() and old["tag"] != new["tag"]:
            found.append(f"{what} have the tag {old['tag']!r}, not {new['tag']!r}: keep the tag")
        return found + (_places if new["array"] else _fields)(what, old, new)
    return found


def _choices(what: str, old: Description, new: Description) -> list[str]:
    if "values" not in old:
        return [f"{what} could be any {old['kind']}, and now only {new['values']}: let them"]
    gone = [value for value in old["values"] if value not in new["values"]]
    return [f"{what} could be {gone}, and now cannot: keep these"] if gone else []


def _fields(what: str, old: Description, new: Description) -> list[str]:
    if old["array"]:
        return [f"{what} were records in an array, are now by name: keep array_like"]
    before = {field["stored"]: field for field in old["fields"]}
    found = []
    for field in new["fields"]:
        name, known = field["name"], before.get(field["stored"])
        if known is not None:
            found += _changes(f"values of field {name!r}", known["type"], field["type"])
            found += _lost_default(field, known)
        elif field.get("required", True):
            found.append(_needs_default(name))
    gone = sorted(before.keys() - {field["stored"] for field in new["fields"]})
    if new.get("strict") and gone:
        found.append(f"{what} have fields {gone}, which forbid_unknown_fields does not let pass")
    return found


def _places(what: str, old: Description, new: Description) -> list[str]:
    if not old["array"] or bool(old.get("tagged")) != bool(new.get("tagged")):
        return [f"{what} were records of another layout: keep array_like and tag as they were"]
    before, after = old["fields"], new["fields"]
    if len(after) < len(before):
        gone = [field["name"] for field in before[len(after) :]]
        return [
            f"{what} are arrays, from which fields {gone} cannot be taken: keep them at the end"
        ]
    found = []
    for known, field in zip(before, after, strict=False):
        if known["name"] != field["name"]:
            found.append(
                f"{what} are arrays, in which {field['name']!r} is now where {known['name']!r} "
                "was: add fields at the end"
            )
        found += _changes(f"values of field {field['name']!r}", known["type"], field["type"])
        found += _lost_default(field, known)
    new_ones = after[len(before) :]
    return found + [_needs_default(f["name"]) for f in new_ones if f.get("required", True)]


def _needs_default(name: str) -> str:
    return f"field {name!r} is new, and entries from before it have none: give it a default"


def _lost_default(field: Description, known: Description) -> list[str]:
    if known.get("required", True) or not field.get("required", True):
        return []
    return [f"field {field['name']!r} had a default, which older entries may need: keep one"]


def _words(description: Description) -> str:
    kind: str = description["kind"]
    return f"{kind} or null" if description.get("optional") else kind
