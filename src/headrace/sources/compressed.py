"""Names of files: what of them says the compression; compressed text as its plain bytes."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.errors import CorruptDataError

CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".br": "brotli"}
"""By the end of a name, as pyarrow takes them."""
_SKIP_BYTES = 1 << 20
_OF_SYSTEMS = (
    *("region", "scheme", "endpoint_override", "allow_bucket_creation", "allow_bucket_deletion"),
    *("allow_delayed_open", "smart_defaults", "tls_ca_file_path", "tls_ca_dir_path"),
    *("tls_verify_certificates", "project_id", "retry_limit_seconds", "enable_tls"),
    *("blob_storage_authority", "dfs_storage_authority", "credential_kind", "tenant_id"),
    *("client_id", "client_secret", "background_writes", "user", "replication", "buffer_size"),
    *("default_block_size", "kerb_ticket"),
)
"""Options that S3, GCS, Azure and HDFS of pyarrow take; ``?`` is a pattern before all else."""
_OPTIONS = re.compile(rf"(\?(?:{'|'.join(_OF_SYSTEMS)})=.*)$")
_MISTAKE = re.compile(r"(?:/|\.\w+)(\?\w+=[^/.]*)$")
"""Behind a whole name, what none of them takes: pyarrow refuses it."""


def apart(address: str) -> tuple[str, str]:
    """Return an address, and the options of its file system, as in ``s3://b/f?region=x``."""
    found = (_OPTIONS.search(address) or _MISTAKE.search(address)) if "://" in address else None
    return (address, "") if found is None else (address[: found.start(1)], found[1])


def codec_of(address: str) -> str | None:
    """Return how a file is compressed, by its name; ``None``: it is not."""
    return CODECS.get(Path(apart(address)[0]).suffix.lower())


def plain_name(address: str) -> str:
    """Return a name without the end that says how the file is compressed."""
    name, _ = apart(address)
    return name[: -len(Path(name).suffix)] if codec_of(address) else name


class PlainBytes:
    """The plain bytes of a compressed file; reading forward is cheap, going back begins anew.

    Args:
        address: of the file, for errors, and to know how it is compressed.
        opened: opens the file.
    """

    def __init__(self, address: str, opened: Callable[[], Any]) -> None:
        self._address, self._opened = address, opened
        self._source: Any = None
        self._at = 0
        self._begin()

    def _begin(self) -> None:
        self.close()
        raw = self._opened()
        try:
            self._source = pa.CompressedInputStream(raw, codec_of(self._address))
        except BaseException:
            raw.close()
            raise
        self._at = 0

    def read(self, size: int) -> bytes:
        """Return so many bytes; fewer at the end alone.

        Raises:
            CorruptDataError: the file is cut off, or not compressed as its name says.
        """
        parts = []
        while size > 0:
            try:
                data: bytes = self._source.read(size)
            except (OSError, pa.ArrowException) as error:
                raise CorruptDataError(
                    f"{self._address} cannot be unpacked: {str(error).splitlines()[0]}; it is cut "
                    "off, or its name says another compression than it has",
                    file=self._address,
                ) from error
            if not data:
                break
            parts.append(data)
            size -= len(data)
            self._at += len(data)
        return b"".join(parts)

    def seek(self, position: int) -> None:
        """Go to a place among the plain bytes."""
        if position < self._at:
            self._begin()
        while self._at < position:
            if not self.read(min(_SKIP_BYTES, position - self._at)):
                return

    def fileno(self) -> int:
        """Refuse: what is read has no descriptor."""
        raise io.UnsupportedOperation("fileno")

    def close(self) -> None:
        """Close the file."""
        if self._source is not None:
            self._source.close()
            self._source = None

    def __enter__(self) -> PlainBytes:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()
