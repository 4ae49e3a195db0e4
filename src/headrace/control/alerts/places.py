"""Where alerts go: the log, a webhook, a stream. Each takes an event, or says why not."""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Protocol
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa

from headrace.bus.bus import Bus, Stream
from headrace.bus.spec import Producer, StreamSpec
from headrace.config import Settings
from headrace.control.alerts.book import AlertEvent
from headrace.errors import HeadraceError, InvalidInputError, UnavailableError

TIMEOUT_S = 5.0
_TRY_AGAIN = (408, 425, 429)
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_URL = re.compile(r"https?://[!-~]+")

COLUMNS = pa.schema(
    [
        ("id", pa.string()),
        ("job", pa.string()),
        ("rule", pa.string()),
        ("kind", pa.string()),
        ("state", pa.string()),
        ("text", pa.string()),
        ("value", pa.int64()),
        ("above", pa.int64()),
        ("since", pa.timestamp("ms", "UTC")),
        ("at", pa.timestamp("ms", "UTC")),
    ]
)


class RefusedError(InvalidInputError):
    """A place that will not take it, however often it is tried."""

    code = "HR115"
    move = "put the place right in [alerts], then try it: headrace alerts test"


class Place(Protocol):
    """Somewhere that alerts go to."""

    @property
    def shown(self) -> str:
        """What it is, without what is secret."""
        ...

    def deliver(self, event: AlertEvent, lineage: str) -> None:
        """Hand an event over.

        Raises:
            UnavailableError: not now; try again.
            RefusedError: never.
        """
        ...


class Log:
    """The notices of ``headrace run``.

    Args:
        tell: takes a line.
    """

    shown = "log"

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def deliver(self, event: AlertEvent, lineage: str) -> None:
        """Tell it in a line."""
        del lineage
        word = "alert" if event.state == "firing" else f"alert ({event.state})"
        self._tell(f"{word} {event.rule}: {event.text}")


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the event would be left behind, and a GET be sent in its place."""

    def redirect_request(self, *args: object) -> None:
        """Let the answer be an error."""
        del args


_OPENER = urllib.request.build_opener(_Stay)


class Webhook:
    """A server that takes each event as JSON, by POST.

    Args:
        url: of it; ``${NAME}`` is taken from the environment.
        environ: the environment; the process's own when left out.

    Raises:
        InvalidInputError: a variable that is not set, or with them it is no URL.
    """

    def __init__(self, url: str, environ: Mapping[str, str] | None = None) -> None:
        known = os.environ if environ is None else environ
        missing = sorted({name for name in _VARIABLE.findall(url) if name not in known})
        if missing:
            raise InvalidInputError(
                f"alerts.webhook names ${{{missing[0]}}}, which is not in the environment; set it "
                "where headrace runs"
            )
        self._url = _VARIABLE.sub(lambda found: known[found[1]], url)
        self.shown = f"webhook of {_host(self._url)}"

    def deliver(self, event: AlertEvent, lineage: str) -> None:
        """Post it; any answer of 2xx is good."""
        del lineage
        headers = {"Content-Type": "application/json", "User-Agent": "headrace"}
        request = urllib.request.Request(self._url, msgspec.json.encode(event), headers)
        try:
            with _OPENER.open(request, timeout=TIMEOUT_S) as answer:
                answer.read(1)
        except urllib.error.HTTPError as error:
            error.close()
            said = f"the {self.shown} answers {error.code} {error.reason}"
            if 300 <= error.code < 500 and error.code not in _TRY_AGAIN:
                raise RefusedError(said) from error
            raise UnavailableError(said) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise UnavailableError(f"the {self.shown} does not answer: {reason}") from error
        except HTTPException as error:
            said = f"the {self.shown} does not answer as a web server does"
            raise UnavailableError(f"{said}: {type(error).__name__}") from error


def _host(url: str) -> str:
    """Return the host of a URL; one that is wrong is not shown, for it may be secret."""
    try:
        found = urlsplit(url)
        if _URL.fullmatch(url) and found.hostname and found.port != 0:
            return found.hostname
    except ValueError:  # of its port, or of an address in brackets
        pass
    raise InvalidInputError(
        "alerts.webhook is no URL once its variables are in place; http:// or https://, a host, "
        "and no spaces or other letters than ASCII are expected"
    )


class StreamPlace:
    """A stream of the bus: a row for each event, once, whatever is tried again.

    Args:
        name: of the stream, made at its first event.
        bus: where it is.

    Raises:
        InvalidInputError: no stream can have that name.
    """

    def __init__(self, name: str, bus: Bus) -> None:
        self._spec, self._bus = StreamSpec(name, 1, COLUMNS, "at"), bus
        self.shown = f"stream {name}"

    def deliver(self, event: AlertEvent, lineage: str) -> None:
        """Append it, under its number."""
        values = msgspec.to_builtins(event)
        values |= {"since": event.since_ms, "at": event.at_ms}
        columns = [pa.array([values[field.name]], field.type) for field in COLUMNS]
        row = pa.RecordBatch.from_arrays(columns, schema=COLUMNS)
        try:
            producer = Producer(f"alerts/{event.job}", lineage)
            self._stream().append(0, row, producer=producer, sequence=event.number)
        except InvalidInputError as error:
            raise RefusedError(f"{self.shown}: {error.message}") from error
        except (HeadraceError, OSError) as error:
            raise UnavailableError(f"{self.shown} takes nothing: {error}") from error

    def _stream(self) -> Stream:
        name = self._spec.name
        if name not in {*self._bus.names(), *self._bus.aliases()}:
            self._bus.create(self._spec, exist_ok=True)
        return self._bus.stream(name)


def places_of(settings: Settings, bus: Bus, tell: Callable[[str], None]) -> dict[str, Place]:
    """Return the places that the settings name, by what rules call them.

    Raises:
        InvalidInputError: a rule names one that is not set, or the webhook cannot be made.
    """
    found: dict[str, Place] = {"log": Log(tell)}
    if settings.alerts.webhook is not None:
        found["webhook"] = Webhook(settings.alerts.webhook)
    if settings.alerts.stream is not None:
        found["stream"] = StreamPlace(settings.alerts.stream, bus)
    for rule in settings.alerts.rules:
        for name in rule.to or ():
            if name not in found:
                raise InvalidInputError(
                    f"rule {rule.name!r} of alerts tells the {name}, and alerts.{name} is not set; "
                    f"set it, or leave {name} out of its to"
                )
    return found
