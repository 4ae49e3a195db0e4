"""Click counting without sessions: the clicks of each page in each minute.

    headrace bus append clicks clicks.jsonl --infer --time at --key page
    headrace run click_counts.py --bounded
    headrace bus tail page_minutes

It reads the stream ``clicks`` and sends to two others:

    page_minutes   clicks of each page in each minute of event time, and the slowest of them
    page_totals    clicks of each page so far, at the end of each hour

It needs no start or end of a visit. A click counts in the window of its event time, also when it
comes late: up to ten seconds out of order, and up to five minutes after its window.
"""

import headrace as hr


def is_person(click: object) -> bool:
    """Leave out clicks of programs that identify themselves."""
    return "bot" not in click.agent.lower()  # type: ignore[attr-defined]


@hr.job("click-counts")
def click_counts(g: hr.Graph) -> None:
    clicks = g.input("clicks", time="at", out_of_orderness="10s").filter(is_person, uses=["agent"])
    by_page = clicks.partition_by("page")
    by_page.window(
        hr.tumbling("1m", allowed_lateness="5m"),
        name="minutes",
        clicks=hr.agg.count(),
        slowest_ms=hr.agg.max("load_ms"),
    ).send_to(g.output("page_minutes"))
    by_page.aggregate(every="1h", name="totals", clicks=hr.agg.count()).send_to(
        g.output("page_totals")
    )
