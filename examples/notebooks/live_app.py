"""A live table in marimo: its cells run again every second, and show what is committed by then.

marimo run examples/notebooks/live_app.py
"""

import marimo

app = marimo.App()


@app.cell
def _():
    import marimo as mo

    import headrace as hr

    return hr, mo


@app.cell
def _(mo):
    again = mo.ui.refresh(default_interval="1s")
    again
    return (again,)


@app.cell
def _(hr):
    totals = hr.read("totals").live(key="user", rows=20)
    return (totals,)


@app.cell
def _(again, totals):
    again  # this cell runs whenever it refreshes
    totals.refresh()
    totals


if __name__ == "__main__":
    app.run()
