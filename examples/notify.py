"""Notify: ask a service for each member's settings, many at a time, and tell who wants to be told.

    python -m http.server 8000   # with a file of JSON for each member: {"mail": "a@example.org"}
    headrace bus append updates updates.jsonl --infer --key member
    PROFILES=127.0.0.1:8000 headrace run notify.py
    headrace bus tail notes --follow

A member who has had three notes gets no more: the count is kept in a store, beside the calls.
"""

import asyncio
import json
import os
from dataclasses import dataclass
from typing import Any

import headrace as hr

MOST_NOTES = 3


@dataclass
class Note:
    """Something that a member is told."""

    member: str
    mail: str
    text: str


class Notify(hr.AsyncProcessor):
    """Asks about the member of each update; the updates of one member one after the other."""

    def open(self, context: hr.Context) -> None:
        self.host, _, self.port = os.environ.get("PROFILES", "127.0.0.1:8000").partition(":")

    async def process(self, update: Any, context: hr.Context) -> None:
        sent = context.store("sent")
        count = sent.get(update.member, 0)
        if count >= MOST_NOTES:
            return
        profile = await self.profile(update.member)
        if profile.get("mail"):
            sent.put(update.member, count + 1)
            context.emit(Note(update.member, profile["mail"], update.text))

    async def profile(self, member: str) -> dict[str, Any]:
        """Ask the service; a client with a pool of connections would stand here."""
        reader, writer = await asyncio.open_connection(self.host, int(self.port))
        try:
            writer.write(f"GET /{member} HTTP/1.0\r\n\r\n".encode())
            answer = await reader.read()
        finally:
            writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise LookupError(f"no profile of {member}")
        found: dict[str, Any] = json.loads(body)
        return found


@hr.job("notify")
def notify(g: hr.Graph) -> None:
    """Ask up to a hundred times at once; who cannot be found is set aside."""
    notes = (
        g.input("updates")
        .partition_by("member")
        .process(
            Notify,
            stores={"sent": int},
            returns=Note,
            order="key",
            max_concurrency=100,
            timeout="10s",
            on_error="dead_letter",
        )
    )
    notes.send_to(g.output("notes"))
