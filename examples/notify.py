"""Notify: read members' settings from a service, many at a time, and notify those who want it.

    python -m http.server 8000   # with a file of JSON for each member: {"mail": "a@example.org"}
    headrace bus append updates updates.jsonl --infer --key member
    PROFILES=127.0.0.1:8000 headrace run notify.py
    headrace bus tail notes --follow

A member gets at most three notes. The count is kept in a store.
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
    """A notification for a member."""

    member: str
    mail: str
    text: str


class Notify(hr.AsyncProcessor):
    """Asks for the settings of each update's member, in order for each member."""

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
        """Ask the service; a real job would use a client with a pool of connections."""
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
    """Ask for up to a hundred members at once; an unknown member is a dead letter."""
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
