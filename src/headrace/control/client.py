"""Asks a running driver by its API; for commands.

``reachable`` finds a driver that may be asked, and ``asked`` has one answer; where neither is to
be had, a command goes by the files of the job. ``control.json`` in the job's storage has the
address, for its owner alone.
"""

from __future__ import annotations

import http.client
import json
import os
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from headrace.config import Settings
from headrace.coordinator.job_storage import STORAGES, check_job_name
from headrace.errors import HeadraceError, InvalidInputError, UnavailableError
from headrace.files import Files, is_alive

API_FILE = "control.json"
EVERY_ADDRESS = ("0.0.0.0", "::")
"""What a driver binds to that is to be reached at all addresses of its host."""


class ApiAddress(msgspec.Struct, frozen=True):
    """Where a driver's API is, and what it asks for; ``host`` has the process."""

    url: str
    token: str
    process: int
    host: str = ""


TIMEOUT_S = 40.0
ASKED_S = 5.0
"""So long a command waits for an answer that files have, too."""

_T = TypeVar("_T")


class UnreachableError(UnavailableError):
    """No driver took the request, or it does not know such requests."""


class SilentError(UnavailableError):
    """The request was taken, and no answer came in time; it may still be done."""


class Client:
    """The API of the driver of a job; past any proxy, which must not see the token.

    Args:
        storage: of the job.
        job: its name.
        timeout_s: how long an answer may take.

    Raises:
        InvalidInputError: no driver of it serves the API, or one that this host cannot reach.
    """

    def __init__(self, storage: Path, job: str, timeout_s: float = TIMEOUT_S) -> None:
        self.job, self._timeout_s, self._path = job, timeout_s, storage / API_FILE
        try:
            data = Files(sync=False).read(self._path)
            self.place = msgspec.json.decode(data, type=ApiAddress)
        except (FileNotFoundError, NotADirectoryError):
            raise _nobody(job) from None
        self._check_host()

    def _check_host(self) -> None:
        """Refuse a loopback that is another host's: what listens here must not get the token."""
        address = urlsplit(self.place.url).hostname or ""
        if self.is_here:
            return
        own = ("localhost", "::1", *EVERY_ADDRESS)
        if address in own or address.startswith("127."):
            raise InvalidInputError(
                f"the driver of job {self.job!r} runs on host {self.place.host} and answers there "
                "only; ask there, or start it with control.host set to an address that others "
                "reach",
                job=self.job,
            )

    @property
    def is_here(self) -> bool:
        """Say whether the driver runs on this host."""
        return self.place.host in ("", os.uname().nodename)

    @property
    def has_ended(self) -> bool:
        """Say whether the word of the driver is no longer there, or its process is not."""
        if self.is_here and not is_alive(self.place.process):
            return True
        try:
            data = Files(sync=False).read(self._path)
            return msgspec.json.decode(data, type=ApiAddress) != self.place
        except (FileNotFoundError, NotADirectoryError):
            return True
        except (OSError, msgspec.DecodeError):
            return False

    def get(self, path: str) -> Any:
        """Return the answer to a GET.

        Raises:
            UnreachableError: nobody takes it.
            SilentError: no answer comes.
            UnavailableError: the driver cannot do it now.
            InvalidInputError: it refuses.
        """
        return json.loads(self._asked(path, None))

    def read(self, path: str) -> bytes:
        """Return the answer to a GET as it comes; raises as ``get`` does."""
        return self._asked(path, None)

    def get_as(self, path: str, kind: type[_T]) -> _T:
        """Return the answer to a GET as what it stands for; raises as ``get`` does.

        Raises:
            UnavailableError: also a driver of another version, which says it differently.
        """
        data = self._asked(path, None)
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise self._other_version() from error

    def post(self, path: str, **body: Any) -> Any:
        """Return the answer to a POST; raises as ``get`` does."""
        return json.loads(self._asked(path, json.dumps(body).encode()))

    def post_as(self, path: str, kind: type[_T], **body: Any) -> _T:
        """Return the answer to a POST as what it stands for; raises as ``get_as`` does."""
        try:
            return msgspec.convert(self.post(path, **body), kind)
        except msgspec.ValidationError as error:
            raise self._other_version() from error

    def _other_version(self) -> UnavailableError:
        return UnavailableError(f"the driver of job {self.job!r} is another version")

    def _asked(self, path: str, body: bytes | None) -> bytes:
        place = urlsplit(self.place.url)
        headers = {"Authorization": f"Bearer {self.place.token}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        # On the host itself its name need not resolve, nor to an address that is listened on.
        is_own_name = self.is_here and place.hostname == self.place.host.lower()
        address = "127.0.0.1" if is_own_name else place.hostname or ""
        connection = http.client.HTTPConnection(address, place.port, timeout=self._timeout_s)
        try:
            connection.connect()
        except OSError as error:
            raise UnreachableError(self._no_answer(error), job=self.job) from error
        try:
            self._check_peer(connection, address)
            connection.request("GET" if body is None else "POST", path, body, headers)
            answer = connection.getresponse()
            data = answer.read()
        except TimeoutError as error:
            said = f"{self._no_answer(error)}; what it was asked it may still do"
            raise SilentError(said, job=self.job) from error
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError(self._no_answer(error), job=self.job) from error
        finally:
            connection.close()
        if answer.status == http.client.OK:
            return data
        raise _refusal(answer.status, data, answer.reason)

    def _check_peer(self, connection: http.client.HTTPConnection, address: str) -> None:
        """Refuse a name of another host that means this one here."""
        if not self.is_here and _is_loopback(connection.sock.getpeername()[0]):
            refused = OSError(f"{address} is this host, and not {self.place.host}")
            raise UnreachableError(self._no_answer(refused), job=self.job)

    def _no_answer(self, error: Exception) -> str:
        return (
            f"the driver of job {self.job!r}, process {self.place.process}, does not answer "
            f"at {self.place.url}: {error}; headrace jobs ls shows whether it runs"
        )


def _nobody(job: str) -> InvalidInputError:
    return InvalidInputError(
        f"no driver of job {job!r} answers: it does not run, or has control.enabled=false; "
        "headrace jobs ls shows which jobs run",
        job=job,
    )


def _refusal(status: int, data: bytes, reason: str) -> HeadraceError:
    problem: dict[str, Any] = {}
    with suppress(ValueError):  # a fault of the server's own comes as plain text
        problem = json.loads(data)
    message = str(problem.get("message", reason))
    if status == http.client.SERVICE_UNAVAILABLE:
        return UnavailableError(message)
    if status == http.client.NOT_FOUND:  # a route that the driver's version does not have
        return UnreachableError(message)
    return InvalidInputError(message)


def client_of(settings: Settings, job: str, timeout_s: float = TIMEOUT_S) -> Client:
    """Return the API of the driver of a job, wherever it keeps its storage.

    Raises:
        InvalidInputError: no driver of it serves the API, or one that this host cannot reach.
    """
    client = reachable(settings, job, timeout_s)
    if client is not None:
        return client
    Client(settings.jobs_dir / job, job)  # which may say better what is wrong
    raise _nobody(job)


def reachable(settings: Settings, job: str, timeout_s: float = TIMEOUT_S) -> Client | None:
    """Return the API of the driver of a job; ``None``: none that this host can ask."""
    found = (_living(folder, job, timeout_s) for folder in _storages(settings, job))
    return next((client for client in found if client is not None), None)


def asked(settings: Settings, job: str, path: str, kind: type[_T]) -> _T | None:
    """Return what the running driver of a job answers at once; ``None``: go by its files.

    Args:
        settings: of the home.
        job: its name.
        path: of a GET.
        kind: what the answer stands for.
    """
    with suppress(HeadraceError):
        client = reachable(settings, job, ASKED_S)
        return None if client is None else client.get_as(path, kind)
    return None


def _storages(settings: Settings, job: str) -> tuple[Path, ...]:
    check_job_name(job)
    return settings.state_dir / STORAGES / job, settings.jobs_dir / job


def _living(folder: Path, job: str, timeout_s: float) -> Client | None:
    with suppress(InvalidInputError, OSError, msgspec.DecodeError):
        client = Client(folder, job, timeout_s)
        if not client.has_ended:
            return client
    return None


def _is_loopback(address: str) -> bool:
    found = ip_address(address.partition("%")[0])
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback
