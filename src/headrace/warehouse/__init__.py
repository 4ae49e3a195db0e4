"""The warehouse: tables with a partition for each day, committed by epochs, read by anyone.

``g.output_table`` writes them. ``Table`` returns the files with the committed rows; other readers
use ``warehouse/NAME/*/*.parquet``. The steps of a commit are in ``receiver``.
"""

from headrace.warehouse.table import DayInfo, Table, named_table, readable_tables, table_names

__all__ = ["DayInfo", "Table", "named_table", "readable_tables", "table_names"]
