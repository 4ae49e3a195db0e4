"""The warehouse: tables with a partition for each day, committed by epochs, read by anyone.

``g.output_table`` fills them. ``Table`` tells a reader which files hold the committed rows; plain
readers take ``warehouse/NAME/*/*.parquet``. Which steps a commit has is in ``receiver``.
"""

from headrace.warehouse.table import DayInfo, Table, named_table, readable_tables, table_names

__all__ = ["DayInfo", "Table", "named_table", "readable_tables", "table_names"]
