"""Ships record classes of the user's by value where cloudpickle alone cannot: msgspec structs.

cloudpickle rebuilds a class from its dict, which a struct is not made of: its fields would be
lost on the way. Here a struct is made anew from its fields, and methods follow once it is there,
for they may refer to it. Within one process the class itself is returned. Annotations that are
text are resolved before, of all record classes.
"""

from __future__ import annotations

import inspect
import io
import typing
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import msgspec
from cloudpickle import cloudpickle as parts

from headrace.graph.types import is_record

_OPTIONS = (
    "frozen",
    "eq",
    "order",
    "array_like",
    "gc",
    "repr_omit_defaults",
    "omit_defaults",
    "forbid_unknown_fields",
    "weakref",
    "dict",
    "cache_hash",
    "tag",
    "tag_field",
)
_OWN = frozenset(
    ("__module__", "__annotations__", "__slots__", "__match_args__", "__post_init__", "__weakref__")
)
_ABSENT = object()


def dumps(value: Any) -> bytes:
    """Return what ``cloudpickle.loads`` reads, structs by value included."""
    target = io.BytesIO()
    _Pickler(target).dump(value)
    return target.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, value: Any) -> Any:
        is_ours = isinstance(value, type) and is_record(value)
        if is_ours and not parts._should_pickle_by_reference(value):  # noqa: SLF001 - no other way
            if issubclass(value, msgspec.Struct):
                return _reduced(value)
            _resolve(value)
        return super().reducer_override(value)


def _resolve(kind: Any) -> None:
    """Put types in the place of annotations that are text: there, their module may be missing."""
    own = inspect.get_annotations(kind)
    if any(isinstance(hint, str | typing.ForwardRef) for hint in own.values()):
        kind.__annotations__ = {**own, **{n: h for n, h in _hints(kind).items() if n in own}}


def _reduced(kind: Any) -> Any:
    """How a struct class is made again: its fields, and then what else it has."""
    own = inspect.get_annotations(kind)
    hints = _hints(kind)
    positional = set(kind.__match_args__)
    fields = [
        (
            field.name,
            hints.get(field.name, own[field.name]),
            None if field.default is msgspec.NODEFAULT else (field.default,),
            None if field.default_factory is msgspec.NODEFAULT else field.default_factory,
            field.encode_name,
            field.name in positional,
        )
        for field in msgspec.structs.fields(kind)
        if field.name in own
    ]
    config = kind.__struct_config__
    options = {name: getattr(config, name) for name in _OPTIONS}
    begin = {
        name: kind.__dict__[name]
        for name in ("__post_init__", "__module__", "__doc__")
        if name in kind.__dict__
    }
    names = {field.name for field in msgspec.structs.fields(kind)}
    made_by_struct = set(vars(msgspec.defstruct("Empty", []))) | _OWN | names
    rest = {
        name: value
        for name, value in kind.__dict__.items()
        if name not in made_by_struct and not name.startswith("__struct_")
    }
    tracked = parts._get_or_create_tracker_id(kind)  # noqa: SLF001 - that of all other classes
    given = (tracked, kind.__name__, kind.__qualname__, kind.__bases__, fields, options, begin)
    return _make, given, rest, None, None, _finish


def _hints(kind: Any) -> dict[str, Any]:
    """The types of fields, where they can be told and are not of the class itself."""
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except (NameError, TypeError):
        return {}
    return {name: hint for name, hint in hints.items() if not _mentions(hint, kind)}


def _mentions(hint: Any, kind: Any) -> bool:
    return hint is kind or any(_mentions(one, kind) for one in typing.get_args(hint))


def _make(
    tracked: str,
    name: str,
    qualname: str,
    bases: tuple[type, ...],
    fields: list[Any],
    options: dict[str, Any],
    begin: dict[str, Any],
) -> Any:
    known = parts._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracked)  # noqa: SLF001 - as above
    if known is not None:
        return known
    rename = {field: encoded for field, _, _, _, encoded, _ in fields}
    by_place = [_declared(*one[:4]) for one in fields if one[5]]
    by_name = [_declared(*one[:4]) for one in fields if not one[5]]
    common = {"rename": rename, **options}
    if by_name and by_place:
        bases = (msgspec.defstruct(name, by_place, bases=bases, **common),)
        by_place = []
    made = msgspec.defstruct(
        name,
        by_name or by_place,
        bases=bases,
        namespace=dict(begin),
        kw_only=bool(by_name),
        **common,
    )
    made.__qualname__ = qualname
    return parts._lookup_class_or_track(tracked, made)  # noqa: SLF001 - as above


def _declared(name: str, hint: Any, default: Any, factory: Any) -> Any:
    if default is not None:
        return name, hint, msgspec.field(default=default[0])
    if factory is not None:
        return name, hint, msgspec.field(default_factory=factory)
    return name, hint


def _finish(kind: Any, rest: dict[str, Any]) -> None:
    for name, value in rest.items():
        if kind.__dict__.get(name, _ABSENT) is not value:
            setattr(kind, name, value)
