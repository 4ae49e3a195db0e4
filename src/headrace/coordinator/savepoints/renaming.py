"""A saved part under another job's name: what is called after the job takes the new one's."""

from __future__ import annotations

import json

from msgspec import structs

from headrace.coordinator.savepoints.form import SavedPart
from headrace.plan.fingerprint import OPERATOR, SENT
from headrace.plan.parts import STREAM_SUFFIX, feed_stream


def renamed(part: SavedPart, before: str, job: str) -> SavedPart:
    """Return a part of a job as one of another job, which has read nothing of internal streams.

    Args:
        part: as it was saved.
        before: the job's name then.
        job: its name now.
    """
    state, catalog = part.state, part.catalog

    def stream(name: str) -> str:
        return feed_stream(job, name.removeprefix(f"{before}.").removesuffix(STREAM_SUFFIX))

    fingerprint = {}
    for name, text in state.fingerprint.items():
        told = json.loads(text)
        is_sent = told["kind"] == SENT
        fingerprint[feed_stream(job, told[OPERATOR]) if is_sent else name] = text
    inputs = {
        operator: {p: structs.replace(at, next_offset=0) for p, at in held.items()}
        if operator in catalog.feeds
        else held
        for operator, held in state.inputs.items()
    }
    return structs.replace(
        part,
        state=structs.replace(state, job=job + part.suffix, fingerprint=fingerprint, inputs=inputs),
        catalog=structs.replace(
            catalog,
            job=job + part.suffix,
            inputs={
                operator: stream(name) if operator in catalog.feeds else name
                for operator, name in catalog.inputs.items()
            },
            sends=tuple(stream(name) for name in catalog.sends),
        ),
    )
