"""Order values: every order with its customer, in euros at the rate of its own time.

    headrace bus create customers --compact --key customer --schema "customer:string,name:string"
    headrace bus append rates rates.jsonl --infer --time at
    headrace bus append orders orders.jsonl --infer --time at
    headrace run order_values.py
    headrace bus tail valued --follow

Customers are a table of their latest rows, which is read in full before the first order. Rates are
a table with a history of a day: for any order of reading, an order takes the rate that was valid
when it was placed. ``per_customer`` has the latest name of each customer and the amount spent so
far.
"""

import headrace as hr


@hr.job("order-values")
def order_values(g: hr.Graph) -> None:
    customers = g.table("customers", key="customer")
    rates = g.table("rates", key="currency", time="at", idle="10s", history="1d")
    orders = g.input("orders", time="at", out_of_orderness="10s")

    priced = orders.partition_by("currency").join(rates, columns=["rate"], as_of="event")
    euros = (hr.col("amount") * hr.col("rate")).round(2).alias("euros")
    valued = priced.map("customer", "at", euros).partition_by("customer")
    valued.join(customers, how="left", columns=["name"]).send_to(g.output("valued"))

    spent = valued.aggregate(spent=hr.agg.sum("euros")).table()
    customers.join(spent, how="left").changes().send_to(g.output("per_customer"))
