"""Asks a running driver by its API; for commands of this host."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from headrace.control.server import PLACE, Place
from headrace.errors import InvalidInputError, UnavailableError

TIMEOUT_S = 40.0

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Past any proxy of the environment, which must not see the token."""


class Client:
    """The API of the driver of a job.

    Args:
        storage: of the job.
        job: its name.
        timeout_s: how long an answer may take.

    Raises:
        InvalidInputError: no driver of it serves the API, or one that this host cannot reach.
    """

    def __init__(self, storage: Path, job: str, timeout_s: float = TIMEOUT_S) -> None:
        self.job, self._timeout_s = job, timeout_s
        try:
            data = (storage / PLACE).read_bytes()
        except FileNotFoundError:
            raise InvalidInputError(
                f"no driver of job {job!r} answers: it does not run, or has control.enabled=false; "
                "headrace jobs ls tells which jobs run",
                job=job,
            ) from None
        self.place = msgspec.json.decode(data, type=Place)
        self._check_host()

    def _check_host(self) -> None:
        """Refuse a loopback that is another host's: whoever listens here must not get the token."""
        host, address = self.place.host, urlsplit(self.place.url).hostname or ""
        if host in ("", os.uname().nodename):
            return
        if address in ("localhost", "::1") or address.startswith("127."):
            raise InvalidInputError(
                f"the driver of job {self.job!r} runs on host {host} and answers there only; ask "
                "there, or start it with control.host set to an address that others reach",
                job=self.job,
            )

    def get(self, path: str) -> Any:
        """Return the answer to a GET.

        Raises:
            UnavailableError: the driver does not answer.
            InvalidInputError: it refuses.
        """
        return self._asked(path, None)

    def post(self, path: str, **body: Any) -> Any:
        """Return the answer to a POST; raises as ``get`` does."""
        return self._asked(path, json.dumps(body).encode())

    def _asked(self, path: str, body: bytes | None) -> Any:
        request = urllib.request.Request(
            f"{self.place.url}{path}",
            body,
            {"Authorization": f"Bearer {self.place.token}", "Content-Type": "application/json"},
        )
        try:
            with _DIRECT.open(request, timeout=self._timeout_s) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            told: dict[str, Any] = {}
            with suppress(ValueError):  # a fault of the server's own is told in plain text
                told = json.loads(error.read())
            raise InvalidInputError(str(told.get("message", error.reason))) from error
        except OSError as error:
            raise UnavailableError(
                f"the driver of job {self.job!r}, process {self.place.process}, does not answer "
                f"at {self.place.url}: {error}; headrace jobs ls tells whether it runs",
                job=self.job,
            ) from error
