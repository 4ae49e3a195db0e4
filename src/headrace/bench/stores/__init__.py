"""``headrace bench stores``: the paper's ReadOnly and ReadWrite over every kind of store.

Read ``cases`` for what is compared, ``jobs`` for the work, ``run`` for how a rate is measured,
``latency`` for both latencies, ``figures`` for the drawings and ``report`` for the tables.
"""
