"""A server that answers as S3 does, over a folder of this machine whose folders are buckets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

DATE = "Tue, 01 Jan 2013 00:00:00 GMT"


class _Requests(BaseHTTPRequestHandler):
    """Lists keys, and gives objects and ranges of them; nothing is written."""

    root: Path
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._object()

    def do_GET(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        if "list-type" in asked:
            self._listing({name: values[0] for name, values in asked.items()})
        else:
            self._object()

    def _object(self) -> None:
        path = self.root / unquote(urlsplit(self.path).path).strip("/")
        if not path.is_file():
            self._answer(200 if path.parent == self.root and path.is_dir() else 404, b"")
            return
        content = path.read_bytes()
        wanted = self.headers.get("Range")
        if wanted is None:
            self._answer(200, content)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        self._answer(206, content[int(first) : int(last) + 1])

    def _listing(self, asked: dict[str, str]) -> None:
        bucket = self.root / unquote(urlsplit(self.path).path).strip("/")
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter")
        keys, folders = [], set()
        for path in sorted(bucket.rglob("*")):
            key = path.relative_to(bucket).as_posix()
            if path.is_dir() or not key.startswith(prefix):
                continue
            below = key[len(prefix) :]
            if delimiter and delimiter in below:
                folders.add(prefix + below.split(delimiter)[0] + delimiter)
            else:
                keys.append((key, path.stat().st_size))
        found = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size>"
            "<LastModified>2013-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, size in keys[: int(asked.get("max-keys", 1000))]
        ) + "".join(
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            for name in sorted(folders)
        )
        self._answer(
            200,
            f"<ListBucketResult><Name>{bucket.name}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{len(keys) + len(folders)}</KeyCount><IsTruncated>false</IsTruncated>"
            f"{found}</ListBucketResult>".encode(),
        )

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Last-Modified", DATE)
        self.send_header("ETag", '"an object"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def served(root: Path) -> Iterator[str]:
    """Serve a folder; gives the options of addresses that lead there."""
    handler = type("_Here", (_Requests,), {"root": root})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"?region=here&scheme=http&endpoint_override=127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
