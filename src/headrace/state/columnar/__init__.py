"""Tables of columns as keyed state: sorted runs, looked up and merged by column.

Read ``table`` for what a task does with one, ``run`` for how rows lie, ``merge`` for how runs
become one, ``keys`` for how a request is made.
"""

from headrace.records.layout import TableLayout
from headrace.state.columnar.found import Found
from headrace.state.columnar.keys import ALL_HASHES, HashRange, TableKeys, hash_range
from headrace.state.columnar.merge import merge_runs, merged_schema
from headrace.state.columnar.run import Run
from headrace.state.columnar.table import ColumnarTable, TableChanges

__all__ = [
    "ALL_HASHES",
    "ColumnarTable",
    "Found",
    "HashRange",
    "Run",
    "TableChanges",
    "TableKeys",
    "TableLayout",
    "hash_range",
    "merge_runs",
    "merged_schema",
]
