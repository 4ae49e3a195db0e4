"""A counter: the number of events in each minute, emitted every few seconds.

    headrace bus append events events.jsonl --infer --time at
    headrace run counter_node.py
    headrace bus tail counters --follow

It emits (time window, counter) for a stream of (timestamp, event). State and output are committed
together, so that an emitted counter never decreases, whichever process fails.
"""

from typing import Any

import headrace as hr

MINUTE, EVERY = 60_000, 5_000
OUT = {"minute": int, "counter": int}


class CounterNode(hr.StatefulProcessor[int]):
    """Counts the events of a minute, and emits the count every five seconds of event time."""

    def begin(self) -> int:
        return 0

    def process(self, event: Any, counter: int) -> tuple[list[Any], int]:
        if counter == 0:
            self.context.set_timer((self.context.time // EVERY + 1) * EVERY, "tell")
        return [], counter + 1

    def on_timer(self, timer: hr.Timer, counter: int) -> tuple[list[Any], int | None]:
        told = [{"minute": timer.key, "counter": counter}]
        if timer.at >= (timer.key + 1) * MINUTE:
            return told, None  # the minute is over
        self.context.set_timer(timer.at + EVERY, "tell")
        return told, counter


@hr.job("counter-node")
def counter_node(g: hr.Graph) -> None:
    events = g.input("events", time="at", out_of_orderness="1s")
    minutes = events.map((hr.col("at") // MINUTE).alias("minute"))
    minutes.partition_by("minute").process(CounterNode, returns=OUT).send_to(g.output("counters"))
