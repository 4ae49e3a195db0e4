"""Addresses of topics: ``kafka://HOST:9092,HOST:9092/TOPIC?OPTION=VALUE``.

Options with a dot in their names are settings of the client, as librdkafka names them; those below
``schema.registry.`` are of the registry's client, as Confluent names them. A secret is
not in an address: ``env:NAME`` and ``file:PATH`` say where it is, and it is read where a client is
made.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from headrace import redaction
from headrace.bus.readable import EXPIRED_POLICIES
from headrace.errors import InvalidInputError

SCHEME = "kafka://"
FORMATS = ("arrow", "avro", "json", "jsonschema", "protobuf", "raw")
REGISTERED = ("avro", "jsonschema", "protobuf")
"""Formats whose schemas are in a registry."""

REGISTRY = "schema.registry."
REGISTRY_URL = REGISTRY + "url"
AUTO_REGISTER = "auto.register.schemas"
ASK_S = 10.0
DELIVERIES = ("exactly_once", "at_least_once")
OPTIONS = ("delivery", "format", "group", "key", "offsets_expired", "partitions")
_OWN = {
    "auto.offset.reset": "a job reads by the offsets in its manifests",
    "bootstrap.servers": "hosts are in the address",
    "enable.auto.commit": "a job commits its own offsets",
    "enable.idempotence": "transactions are idempotent",
    "enable.partition.eof": "a job reads to the ends that it planned",
    "group.id": "give group=",
    "isolation.level": "only committed messages are read",
    "partitioner": "keys go where Kafka's Java clients put them",
    "transactional.id": "it is made of the names of job and operator",
}
_TOPIC = re.compile(r"[A-Za-z0-9._*-]{1,249}")
_PLACE = re.compile(r"(env|file):(.+)")
_PRIVATE = (
    "sasl.oauthbearer.config",
    "schema.registry.basic.auth.user.info",
    "ssl.key.pem",
    "ssl.keystore.password",
)


@dataclass(frozen=True)
class TopicAddress:
    """A topic, and how it is reached.

    Args:
        servers: hosts and ports, separated by commas.
        topic: its name.
        options: of ``OPTIONS``.
        client: settings of the client, by librdkafka's names; secrets by their places.
    """

    servers: str
    topic: str
    options: tuple[tuple[str, str], ...] = ()
    client: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, address: str) -> TopicAddress:
        """Read an address, in which there can be mistakes."""
        rest, _, query = address.removeprefix(SCHEME).partition("?")
        servers, _, topic = rest.partition("/")
        given = parse_qsl(query, keep_blank_values=True)
        return cls(
            servers,
            topic,
            tuple((name, value) for name, value in given if "." not in name),
            tuple((name, value) for name, value in given if "." in name),
        )

    def of(self, topic: str) -> str:
        """Return the address of another topic, reached in the same way."""
        query = urlencode((*self.options, *self.client), safe=":/,")
        return f"{SCHEME}{self.servers}/{topic}{'?' if query else ''}{query}"

    def option(self, name: str, default: str = "") -> str:
        """Return an option, or its default."""
        return dict(self.options).get(name, default)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that are the key of messages."""
        return tuple(filter(None, self.option("key").split(",")))

    @property
    def partitions(self) -> int | None:
        """Partitions of a topic that a sink creates; ``None``: what the broker gives."""
        given = self.option("partitions")
        return int(given) if given else None

    @property
    def is_direct(self) -> bool:
        """Whether slots send rows while an epoch runs: at least once."""
        return self.option("delivery") == "at_least_once"

    @property
    def registers(self) -> bool:
        """Whether a sink registers the schema of its rows; else it writes by the newest one."""
        return dict(self.client).get(AUTO_REGISTER, "true") == "true"

    @property
    def subject(self) -> str:
        """What the schemas of values are registered under: TopicNameStrategy."""
        return f"{self.topic}-value"

    @property
    def answer_timeout_s(self) -> float:
        """How long an answer may take that is no message: ``socket.timeout.ms``."""
        given = dict(self.client).get("socket.timeout.ms", "")
        return int(given) / 1000 if given.isdigit() else ASK_S

    @property
    def said(self) -> str:
        """The topic, in words."""
        return f"Kafka topic {self.topic}"

    @property
    def at(self) -> str:
        """The topic and its hosts, in words."""
        return f"{self.said} at {self.servers}"

    def mistakes(self) -> list[str]:
        """Return what is wrong with it."""
        wrong = []
        if not self.servers or "@" in self.servers:
            wrong.append(
                f"found hosts {self.servers.rpartition('@')[2]!r}; expected "
                "kafka://HOST:9092/TOPIC, and a login by settings such as sasl.username"
            )
        if not _TOPIC.fullmatch(self.topic):
            wrong.append(
                f"found topic {self.topic!r}; expected up to 249 letters, digits, '.', '_' or '-'; "
                "in an input also '*', for all topics that match"
            )
        for name, value in self.options:
            if name not in OPTIONS:
                near = get_close_matches(name, OPTIONS, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"expected {', '.join(OPTIONS)}"
                wrong.append(f"unknown option {name!r}; {hint}, or a setting of librdkafka")
            elif name == "format" and value not in FORMATS:
                wrong.append(f"format is {value!r}; expected one of {', '.join(FORMATS)}")
            elif name == "delivery" and value not in DELIVERIES:
                wrong.append(f"delivery is {value!r}; expected {' or '.join(DELIVERIES)}")
            elif name == "offsets_expired" and value not in EXPIRED_POLICIES:
                wrong.append(f"{name} is {value!r}; expected {', '.join(EXPIRED_POLICIES)}")
            elif name == "partitions" and not (value.isdigit() and int(value)):
                wrong.append(f"partitions is {value!r}; expected a whole number from 1 on")
        for name, value in self.client:
            if name in _OWN:
                wrong.append(f"{name} cannot be set: {_OWN[name]}")
            elif is_secret(name) and not _PLACE.fullmatch(value):
                wrong.append(
                    f"the value of {name} is in the address, where many can read it; expected "
                    "env:NAME or file:PATH instead, which say where it is"
                )
            elif name == AUTO_REGISTER and value not in ("true", "false"):
                wrong.append(f"{name} is {value!r}; expected true or false")
        return wrong + self._registry_mistakes()

    def _registry_mistakes(self) -> list[str]:
        url = dict(self.client).get(REGISTRY_URL, "")
        form = self.option("format")
        if form in REGISTERED and not url:
            return [f"format is {form}, whose schemas are in a registry; give {REGISTRY_URL}=URL"]
        if url and (not url.startswith(("http://", "https://")) or "@" in url):
            return [
                f"{REGISTRY_URL} is {redaction.without_login(url)!r}; expected http://HOST:8081, "
                f"and a login by {REGISTRY}basic.auth.user.info"
            ]
        return []

    def settings(self, environment: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the settings of a client, with secrets from their places.

        Raises:
            InvalidInputError: a variable is not set, or a file cannot be read.
        """
        given = {
            name: self._value(name, value, environment)
            for name, value in self.client
            if not name.startswith(REGISTRY) and name != AUTO_REGISTER
        }
        return {"bootstrap.servers": self.servers, "log_level": "2", **given}

    def registry(self, environment: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the settings of the registry's client, with secrets from their places.

        Raises:
            InvalidInputError: a variable is not set, or a file cannot be read.
        """
        return {
            name.removeprefix(REGISTRY): self._value(name, value, environment)
            for name, value in self.client
            if name.startswith(REGISTRY)
        }

    def _value(self, name: str, value: str, environment: Mapping[str, str] | None) -> str:
        place = _PLACE.fullmatch(value)
        if place is None:
            return value
        found = None
        if place[1] == "env":
            found = (os.environ if environment is None else environment).get(place[2])
        else:
            try:
                found = Path(place[2]).expanduser().read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidInputError(
                    f"{self.at}: {name} cannot be read from file {place[2]}: {error}"
                ) from error
        if found is None:
            raise InvalidInputError(
                f"{self.at}: {name} is to come from variable {place[2]}, which is not set; set it "
                "wherever the job runs"
            )
        if is_secret(name):
            redaction.remember(found)
        return found


def is_secret(name: str) -> bool:
    """Say whether a setting of the client is a secret."""
    return redaction.is_secret(name) or name in _PRIVATE
