"""Clicks beside the views that led to them, and how many views of each ad were clicked.

    headrace bus append views views.jsonl --infer --time at
    headrace bus append clicks clicks.jsonl --infer --time at
    headrace run ad_clicks.py
    headrace bus tail ad_hours --follow

It reads the streams ``views`` (``view``, ``ad``, ``at``) and ``clicks`` (``view``, ``at``), in
whatever order they come, and sends each view once ten minutes have passed in which it may be
clicked: to ``seen``, with the time of its first click or null; and to ``ad_hours`` how many
views each ad had in an hour, and how many of them were clicked.
"""

import headrace as hr


@hr.job("ad-clicks")
def ad_clicks(g: hr.Graph) -> None:
    views = g.input("views", time="at", lateness="30s").partition_by("view")
    clicks = g.input("clicks", time="at", lateness="30s", idle="1m").partition_by("view")
    first = clicks.deduplicate(within="20m")
    seen = views.join(first, after="10m", how="left", columns={"clicked_at": "at"}, name="seen")
    seen.send_to(g.output("seen"))
    by_ad = seen.map("ad", hr.col("clicked_at").is_not_null().cast(int).alias("clicked"))
    hours = by_ad.partition_by("ad").window(
        hr.tumbling("1h"), views=hr.agg.count(), clicks=hr.agg.sum("clicked")
    )
    hours.send_to(g.output("ad_hours"))
