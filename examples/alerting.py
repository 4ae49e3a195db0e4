"""Alerting: report a machine that is too hot for long, normal again, or silent.

    headrace bus append readings readings.jsonl --infer --time at --key machine
    headrace run alerting.py
    headrace bus tail alerts --follow

It reads the stream ``readings`` and sends to ``alerts``: at most one alert for each fault,
for any number of readings, and none twice, whichever process fails.
"""

from dataclasses import dataclass
from typing import Any

import headrace as hr

HOT, HOT_MS, SILENT_MS = 80.0, 60_000, 300_000


@dataclass
class Alert:
    """A fault of a machine, or its end."""

    machine: str
    kind: str


class Watch:
    """Keeps for each machine the start of its heat, its last reading and its last alert."""

    def process(self, reading: Any, context: hr.Context) -> None:
        told, hot_at = context.store("told"), context.store("hot-at")
        machine, heard = reading.machine, context.store("heard-at")
        if (before := heard.get(machine)) is not None:
            context.cancel_timer(before + SILENT_MS, "silent")
        heard.put(machine, context.time)
        context.set_timer(context.time + SILENT_MS, "silent")
        since = hot_at.get(machine)
        if reading.degrees < HOT:
            if since is not None:
                context.cancel_timer(since + HOT_MS, "hot")
                hot_at.delete(machine)
            if told.get(machine) is not None:
                told.delete(machine)
                context.emit(Alert(machine, "well again"))
        elif since is None:
            hot_at.put(machine, context.time)
            context.set_timer(context.time + HOT_MS, "hot")

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
        told = context.store("told")
        if told.get(timer.key) != timer.name:
            told.put(timer.key, timer.name)
            context.emit(Alert(timer.key, timer.name))


@hr.job("alerting")
def alerting(g: hr.Graph) -> None:
    readings = g.input("readings", time="at", out_of_orderness="5s").partition_by("machine")
    stores = {"told": str, "hot-at": int, "heard-at": int}
    readings.process(Watch, stores=stores, returns=Alert, name="watch").send_to(g.output("alerts"))
