"""Buckets of S3, Google Cloud Storage and Azure by the library obstore.

Logins and endpoints are those that the clouds' own tools read from the environment, such as
``AWS_ENDPOINT_URL`` and ``AWS_ACCESS_KEY_ID``; no address has a secret. The library tries again
what is safe to repeat. ``put_new`` is not, without more: so each object that it makes has a token,
by which a call finds that it was its own first try that had won.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from headrace import extras
from headrace.clock import Clock, Deadline, SystemClock
from headrace.errors import HeadraceError, InvalidInputError
from headrace.objects import ObjectInfo, ObjectStorage, StorageAwayError

RETRY_TIMEOUT_S = 30.0
"""So long is a call tried again before the storage counts as away."""
REQUEST_S, CONNECT_S = 30.0, 5.0
PAUSE_S, PAUSE_MOST_S = 0.1, 2.0
PART_BYTES = 8 << 20
"""A larger file goes up in parts of this size."""
TOKEN = "headracetoken"
_NOT_IMPLEMENTED = re.compile(r"\bNotImplemented\b|\b501 Not Implemented\b")

_KINDS = {
    "s3": ("S3Store", "AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    "gs": ("GCSStore", "GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS"),
    "az": ("AzureStore", "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"),
}

_Result = TypeVar("_Result")


class CloudStorage(ObjectStorage):
    """One bucket, or container of Azure.

    Args:
        scheme: ``s3``, ``gs`` or ``az``.
        bucket: its name.
        retry_timeout_s: how long a call is tried again.
        clock: for waiting and names.

    Raises:
        InvalidInputError: the library is not installed, or the environment has no usable login.
    """

    def __init__(
        self,
        scheme: str,
        bucket: str,
        retry_timeout_s: float = RETRY_TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        self._address = f"{scheme}://{bucket}"
        self._retry_timeout_s, self._clock = retry_timeout_s, clock or SystemClock()
        kinds: Any = extras.load("obstore.store", f"a storage at {self._address}")
        self._errors: Any = extras.load("obstore.exceptions", f"a storage at {self._address}")
        name, self._variables = _KINDS[scheme]
        try:
            self._store: Any = getattr(kinds, name)(
                bucket,
                client_options={
                    "timeout": timedelta(seconds=REQUEST_S),
                    "connect_timeout": timedelta(seconds=CONNECT_S),
                    "allow_http": True,  # where the endpoint says so
                },
                retry_config={
                    "max_retries": 100,
                    "retry_timeout": timedelta(seconds=retry_timeout_s),
                    "backoff": {
                        "init_backoff": timedelta(seconds=PAUSE_S),
                        "max_backoff": timedelta(seconds=PAUSE_MOST_S),
                        "base": 2,
                    },
                },
            )
        except Exception as error:
            raise InvalidInputError(
                f"storage {self._address} cannot be used: {error}; set {self._variables}"
            ) from error
        self._probing = threading.Lock()
        self._is_probed = False

    def put_new(self, name: str, data: bytes) -> bool:
        """Create an object by a conditional put; see ``ObjectStorage``."""
        self._probe(name)
        return self._put_new(name, data)

    def _put_new(self, name: str, data: bytes) -> bool:
        token, deadline, pause = (
            self._clock.new_id(),
            Deadline(self._clock, self._retry_timeout_s),
            0.0,
        )
        while True:
            try:
                self._call(name, partial(self._put_once, name, data, token))
            except FileExistsError:
                return self._token(name) == token
            except StorageAwayError:
                if deadline.expired:
                    raise
                # The answer may have been lost, and not the request.
                if (found := self._token(name)) is not None:
                    return found == token
                pause = min(max(PAUSE_S, 2 * pause), PAUSE_MOST_S)
                self._clock.sleep(deadline.remaining(pause))
            else:
                return True

    def _put_once(self, name: str, data: bytes, token: str) -> None:
        self._store.put(name, data, mode="create", use_multipart=False, attributes={TOKEN: token})

    def _token(self, name: str) -> str | None:
        """Return the token of the call that made an object; ``None``: there is no such object."""
        try:
            found = self._call(name, lambda: self._store.get(name))
        except FileNotFoundError:
            return None
        return str(found.attributes.get(TOKEN, ""))

    def _probe(self, name: str) -> None:
        """Make sure, once, that a name which is taken is refused: all else rests on it.

        Raises:
            InvalidInputError: it is not; this storage would lose commits without a word.
        """
        with self._probing:
            if self._is_probed:
                return
            folder = name.rpartition("/")[0]
            probe = f"{folder}/.probe-{self._clock.new_id()}"
            try:
                is_refused = self._put_new(probe, b"1") and not self._put_new(probe, b"2")
            except _UnsupportedError:
                is_refused = False
            finally:
                self.delete(probe)
            if not is_refused:
                raise InvalidInputError(
                    f"storage {self._address} does not refuse to create an object that is there "
                    "(If-None-Match: *), so two drivers could commit the same epoch; use S3 "
                    "itself, MinIO, SeaweedFS 4, Ceph 20, or another with conditional writes"
                )
            self._is_probed = True

    def put(self, name: str, data: bytes) -> None:
        """Set the content of an object."""
        self._written(name, lambda: self._store.put(name, data, use_multipart=False))

    def put_file(self, name: str, path: Path) -> None:
        """Upload a file, in parts where it is large: they show together, or not at all."""
        self._written(name, lambda: self._store.put(name, path, chunk_size=PART_BYTES))

    def _written(self, name: str, put: Callable[[], object]) -> None:
        try:
            self._call(name, put)
        except FileNotFoundError as error:
            raise self._no_bucket() from error

    def get(self, name: str) -> bytes:
        """Return the content of an object."""
        return bytes(self._call(name, lambda: self._store.get(name).bytes()))

    def get_range(self, name: str, begin: int, end: int) -> bytes:
        """Return a part of an object."""
        if begin >= end:
            return b""
        return bytes(self._call(name, lambda: self._store.get_range(name, start=begin, end=end)))

    def get_file(self, name: str, path: Path) -> None:
        """Download an object; what is broken off leaves no file."""

        def fetch() -> None:
            with path.open("wb") as file:
                for chunk in self._store.get(name).stream(PART_BYTES):
                    file.write(chunk)

        try:
            self._call(name, fetch)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def objects(self, folder: str) -> Iterator[ObjectInfo]:
        """Yield the objects below a folder."""
        found = self._store.list(folder or None)
        while batch := self._call(folder, lambda: next(found, None)):
            yield from (one for one in map(_info, batch) if one.name != folder)

    def entries(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        found = self._call(folder, lambda: self._store.list_with_delimiter(folder or None))
        names = [one["path"] for one in found["objects"]] + list(found["common_prefixes"])
        # Some servers, and people by a console, make an object that stands for the folder itself.
        return sorted(name.rstrip("/").rpartition("/")[2] for name in names if name != folder)

    def info(self, name: str) -> ObjectInfo | None:
        """Return what is known of an object."""
        try:
            return _info(self._call(name, lambda: self._store.head(name)))
        except FileNotFoundError:
            return None

    def delete(self, name: str) -> None:
        """Remove an object."""
        try:
            self._call(name, lambda: self._store.delete(name))
        except FileNotFoundError:
            return

    def _call(self, name: str, act: Callable[[], _Result]) -> _Result:
        """Ask the library for something; its errors become those of the contract."""
        errors = self._errors
        try:
            return act()
        except HeadraceError:
            raise
        except (errors.NotFoundError, FileNotFoundError) as error:
            if getattr(error, "errno", None) is not None:  # of a file of this host
                raise
            raise FileNotFoundError(2, "no such object", f"{self._address}/{name}") from error
        except (errors.AlreadyExistsError, errors.PreconditionError) as error:
            raise FileExistsError(17, "object exists", f"{self._address}/{name}") from error
        except (errors.PermissionDeniedError, errors.UnauthenticatedError) as error:
            raise InvalidInputError(
                f"storage {self._address} refuses {name}: {_reason(error)}; set "
                f"{self._variables} to a login that may list, read, write and delete there"
            ) from error
        except errors.NotSupportedError as error:
            raise _UnsupportedError(f"{self._address}: {_reason(error)}") from error
        except errors.BaseError as error:
            if "NoSuchBucket" in str(error):
                raise self._no_bucket() from error
            if _NOT_IMPLEMENTED.search(str(error)):
                raise _UnsupportedError(f"{self._address}: {_reason(error)}") from error
            raise StorageAwayError(
                f"storage {self._address} does not answer for {name}: {_reason(error)}"
            ) from error

    def _no_bucket(self) -> InvalidInputError:
        return InvalidInputError(
            f"storage {self._address} does not exist; create the bucket, or set storage.address "
            "to one that does"
        )


class _UnsupportedError(InvalidInputError):
    """What a storage does not know."""


def _reason(error: BaseException) -> str:
    """Return the first line of what the library says; debug output of its layers follows."""
    return str(error).partition("\n")[0][:300]


def _info(found: Any) -> ObjectInfo:
    return ObjectInfo(found["path"], found["size"], found["last_modified"].timestamp())
