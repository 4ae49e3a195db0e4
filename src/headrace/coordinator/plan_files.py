"""A job's plan on its way to the workers: one file for each version, named by its digest.

The plan holds the user's functions, so it is the one thing that is pickled. It comes from the
one who deploys the job, and a worker loads only bytes that match the digest it was given.
Addresses with a password are not in it but in ``SECRETS``, for the owner alone and as long as
the job is driven; the plan names them by a keyed digest.

cloudpickle rebuilds a class from its dict, which a msgspec struct is not made of. So structs of
users are made again from their fields, and methods follow once they are there.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import io
import os
import pickle
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import msgspec
from cloudpickle import cloudpickle as parts

from headrace.errors import CorruptDataError, InvalidInputError, NotOwnerError, UnavailableError
from headrace.files import Files, write_private
from headrace.graph.types import is_record
from headrace.plan.stages import JobPlan
from headrace.redaction import SecretText, redacted

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


def dumps(value: Any, name_of: Callable[[str], str | None] = lambda text: None) -> bytes:
    """Return what an unpickler reads, structs by value included.

    Args:
        value: what is pickled.
        name_of: of a text that stays behind, the name that stands for it.
    """
    target = io.BytesIO()
    _Pickler(target, name_of).dump(value)
    return target.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, target: io.BytesIO, name_of: Callable[[str], str | None]) -> None:
        super().__init__(target)
        self._name_of = name_of
        self._known: dict[str, str | None] = {}

    def persistent_id(self, value: Any) -> str | None:
        if type(value) is str:  # asked of each object, and most texts come several times
            if value not in self._known:
                self._known[value] = self._name_of(value)
            return self._known[value]
        return self._name_of(value) if isinstance(value, str) else None

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
    """The types of fields, where they are known and are not of the class itself."""
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


SECRETS = "secrets.json"


def save_plan(plan: JobPlan, root: Path, files: Files, module: str = "") -> str:
    """Write a plan below ``root`` and return its digest.

    Args:
        plan: of the job.
        root: of the job's storage.
        files: the file system.
        module: the user's module, shipped by value, so that no executor has to import it.

    Raises:
        InvalidInputError: something in the graph cannot travel, such as an open file.
    """
    secrets = _SecretCollector(root / SECRETS)
    loaded = sys.modules.get(module)
    by_value = loaded is not None and not module.startswith("headrace.")
    if by_value:
        cloudpickle.register_pickle_by_value(loaded)
    try:
        data = dumps(plan, secrets.name_of)
    except Exception as error:
        raise InvalidInputError(
            f"job {plan.graph.name!r} cannot be sent to the workers: {error}; functions must not "
            "hold open files, locks or connections: open them in a processor's open()"
        ) from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(loaded)
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    secrets.save()
    files.publish_again(root / "plans" / digest, data)
    return digest


def forget_secrets(root: Path, files: Files) -> None:
    """Remove the secrets of a job that is driven no more, unless a later driver has written them.

    Args:
        root: of the job's storage.
        files: of the driver; they refuse, once a newer one has begun.
    """
    held = _read(root / SECRETS)
    if held is not None and held.by == _process():
        with contextlib.suppress(NotOwnerError):
            files.remove(root / SECRETS)


class _StoredSecrets(msgspec.Struct, frozen=True):
    """The secrets of a job: who wrote them last, the key of their names, and they by name."""

    by: str
    key: str
    values: dict[str, str]


def _read(path: Path) -> _StoredSecrets | None:
    try:
        return msgspec.json.decode(Files(sync=False).read(path), type=_StoredSecrets)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _process() -> str:
    return f"{os.uname().nodename}/{os.getpid()}"


def _is_plain(value: str) -> bool:
    """Say whether a value is a text with a secret, such as a constant of the user's module."""
    return type(value) is str and redacted(value) != value


class _SecretCollector:
    """Collects what a plan must not hold while it is pickled."""

    def __init__(self, path: Path) -> None:
        self._path = path
        held = _read(path)
        self._key = token_hex(16) if held is None else held.key
        self._values = {} if held is None else dict(held.values)  # an older plan may be in use
        self._has_any = False

    def name_of(self, value: str) -> str | None:
        """Return the name of a secret; ``None``: it is none."""
        if not (type(value) is SecretText or _is_plain(value)):
            return None
        key = bytes.fromhex(self._key)
        digest = hashlib.blake2b(value.encode(), key=key, digest_size=12).hexdigest()
        name = f"{type(value).__name__}/{digest}"
        self._values[name], self._has_any = str(value), True
        return name

    def save(self) -> None:
        """Write down what was found, before the plan that names it."""
        if self._has_any:
            held = _StoredSecrets(_process(), self._key, self._values)
            write_private(self._path, msgspec.json.encode(held))


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, path: Path) -> None:
        super().__init__(io.BytesIO(data))
        self._path = path

    def persistent_load(self, name: Any) -> str:
        held = _read(self._path)
        if held is None or name not in held.values:
            raise UnavailableError(
                f"the plan names an address with a password, which {self._path} does not have: it "
                "is there while the job is driven; start the job again",
                file=str(self._path),
            )
        value = held.values[name]
        return SecretText(value) if name.startswith(SecretText.__name__) else value


def load_plan(root: Path, digest: str, files: Files) -> JobPlan:
    """Read the plan of a digest.

    Raises:
        CorruptDataError: the file does not match the digest; nothing of it was loaded.
        InvalidInputError: a module that the user's functions need is not there.
    """
    data = files.read(root / "plans" / digest)
    if hashlib.blake2b(data, digest_size=16).hexdigest() != digest:
        raise CorruptDataError(f"plan {digest} does not match its digest", file=digest)
    try:
        plan = _Unpickler(data, root / SECRETS).load()
    except ImportError as error:
        raise InvalidInputError(
            f"the job's code cannot be loaded in a worker: {error}; install the module where the "
            "executors run, or put it beside the job's file in a folder that they reach"
        ) from error
    if not isinstance(plan, JobPlan):
        raise CorruptDataError(f"plan {digest} is a {type(plan).__name__}", file=digest)
    return plan
