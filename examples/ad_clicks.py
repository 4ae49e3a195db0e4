"""Join clicks with the views that led to them, and count the clicked views of each ad.

    headrace bus append views views.jsonl --infer --time at
    headrace bus append clicks clicks.jsonl --infer --time at
    headrace run ad_clicks.py
    headrace bus tail ad_hours --follow

It reads the streams ``views`` (``view``, ``ad``, ``at``) and ``clicks`` (``view``, ``at``), in
any order. A view may be clicked for ten minutes. After that the job sends it to ``seen``, with the
time of its first click or null. It sends to ``ad_hours`` the number of views of each ad in an hour,
and how many of them were clicked.
"""

import headrace as hr


@hr.job("ad-clicks")
def ad_clicks(g: hr.Graph) -> None:
    views = g.input("views", time="at", out_of_orderness="30s").partition_by("view")
    clicks = g.input("clicks", time="at", out_of_orderness="30s", idle="1m").partition_by("view")
    first = clicks.deduplicate(within="20m")
    seen = views.join(first, after="10m", how="left", columns={"clicked_at": "at"}, name="seen")
    seen.send_to(g.output("seen"))
    by_ad = seen.map("ad", hr.col("clicked_at").is_not_null().cast(int).alias("clicked"))
    hours = by_ad.partition_by("ad").window(
        hr.tumbling("1h"), views=hr.agg.count(), clicks=hr.agg.sum("clicked")
    )
    hours.send_to(g.output("ad_hours"))
