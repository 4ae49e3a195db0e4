"""A registry of schemas, as its users see it: by number, the newest of a subject, and new ones.

The client is Confluent's, which keeps what it has learned of a schema's number: that never
changes. Each process has clients of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace import extras
from headrace.bus import LogAwayError
from headrace.errors import InvalidInputError
from headrace.kafka.address import REGISTRY, TopicAddress

HEAD_BYTES = 5
"""Before a value: a zero byte, and the number of its schema in four."""

KINDS = {"avro": "AVRO", "jsonschema": "JSON", "protobuf": "PROTOBUF"}
_MISSING = 404
_REFUSED = (401, 403)
_INCOMPATIBLE = (409, 422)
_CLIENTS: dict[Any, SchemaRegistry] = {}


@dataclass(frozen=True)
class Registered:
    """A schema of a registry.

    Args:
        number: its id.
        kind: of ``KINDS``.
        text: the schema.
        imports: the schemas that it refers to, by the names that it refers to them by.
    """

    number: int
    kind: str
    text: str
    imports: Mapping[str, str]


def registry_of(address: TopicAddress) -> SchemaRegistry:
    """Return the registry that an address names.

    Raises:
        InvalidInputError: its client is not installed, or a setting is refused.
    """
    settings = address.registry()
    key = (os.getpid(), address.answer_timeout_s, tuple(sorted(settings.items())))
    if key not in _CLIENTS:
        _CLIENTS[key] = SchemaRegistry(address, settings)
    return _CLIENTS[key]


class SchemaRegistry:
    """A registry; safe for many threads.

    Args:
        address: that names it, for errors.
        settings: of its client.

    Raises:
        InvalidInputError: the client is not installed, or a setting is refused.
    """

    def __init__(self, address: TopicAddress, settings: Mapping[str, str]) -> None:
        self.url = settings["url"]
        self._topic = address.said
        use = "a topic with a schema registry"
        self._library: Any = extras.load("confluent_kafka.schema_registry", use)
        self._errors: Any = extras.load("httpx2", use)
        try:
            own = {"max.retries": 1, "timeout": address.answer_timeout_s}
            self._client = self._library.SchemaRegistryClient({**own, **settings})
        except (ValueError, TypeError, OSError) as error:
            raise InvalidInputError(
                f"{self._topic}: a setting of the schema registry's client is refused: {error}; "
                f"settings begin with {REGISTRY}"
            ) from error

    def schema(self, number: int) -> Registered | None:
        """Return the schema of a number; ``None``: there is none.

        Raises:
            LogAwayError: the registry does not answer.
            InvalidInputError: it refuses this client.
        """
        found = self._asked(lambda: self._client.get_schema(number))
        return None if found is None else self._registered(number, found)

    def newest(self, subject: str) -> Registered | None:
        """Return the newest schema of a subject; ``None``: there is none. Errors as ``schema``."""
        self._client.clear_latest_caches()  # it would say what was the newest when first asked
        found = self._asked(lambda: self._client.get_latest_version(subject))
        return None if found is None else self._registered(found.schema_id, found.schema)

    def register(self, subject: str, kind: str, text: str) -> int:
        """Return the number of a schema, which is registered unless it is there.

        Raises:
            LogAwayError: the registry does not answer.
            InvalidInputError: it refuses the schema, or this client.
        """
        schema = self._library.Schema(text, kind)
        found = self._asked(lambda: self._client.register_schema(subject, schema), subject)
        return int(found)

    def _registered(self, number: int, found: Any) -> Registered:
        imports: dict[str, str] = {}
        self._follow(found, imports)
        kind = found.schema_type or "AVRO"
        return Registered(number, kind, found.schema_str, imports)

    def _follow(self, schema: Any, imports: dict[str, str]) -> None:
        for one in schema.references or ():
            if one.name in imports:
                continue
            found = self._asked(partial(self._client.get_version, one.subject, one.version))
            if found is None:
                raise InvalidInputError(
                    f"{self._topic}: the schema registry at {self.url} has no version "
                    f"{one.version} of {one.subject!r}, to which a schema refers; register it"
                )
            self._follow(found.schema, imports)
            imports[one.name] = found.schema.schema_str

    def _asked(self, ask: Callable[[], Any], subject: str = "") -> Any:
        try:
            with self._library_errors(subject):
                return ask()
        except LookupError:
            return None

    @contextmanager
    def _library_errors(self, subject: str) -> Iterator[None]:
        where = f"{self._topic}: the schema registry at {self.url}"
        try:
            yield
        except self._library.SchemaRegistryError as error:
            status = error.http_status_code
            if status == _MISSING and not subject:
                raise LookupError from error
            if status in _REFUSED:
                raise InvalidInputError(
                    f"{where} refuses this client: {error.error_message}; give it the login that "
                    f"it needs, such as {REGISTRY}basic.auth.user.info"
                ) from error
            if status in _INCOMPATIBLE and subject:
                raise InvalidInputError(
                    f"{where} refuses the schema of the rows for {subject!r}: "
                    f"{error.error_message}; change the columns, or the subject's compatibility"
                ) from error
            raise self._away(where, error.error_message) from error
        except (self._errors.HTTPError, OSError) as error:
            raise self._away(where, str(error)) from error

    def _away(self, where: str, said: str) -> LogAwayError:
        return LogAwayError(
            f"{where} does not answer: {said}; check that it runs: the job continues when it is "
            "back"
        )


def headed(number: int) -> bytes:
    """Return what is before a value of the schema of a number."""
    return b"\0" + number.to_bytes(4, "big")


def number_of(value: bytes) -> int | None:
    """Return the number of the schema of a value; ``None``: it has none."""
    return int.from_bytes(value[1:HEAD_BYTES], "big") if is_headed(value) else None


def is_headed(value: bytes) -> bool:
    """Say whether a value begins as those with a schema of a registry do."""
    return len(value) >= HEAD_BYTES and not value[0]


def not_headed(value: bytes) -> InvalidInputError:
    """Return what is wrong with a value without a schema's number."""
    return InvalidInputError(
        f"found {value[:HEAD_BYTES]!r} at its begin; expected a zero byte and the number of a "
        "schema in four bytes"
    )
