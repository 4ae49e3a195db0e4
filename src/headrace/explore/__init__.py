"""Slice and dice, as in Scuba (seed 003, section 2.6): newest rows of streams as columns, queried.

``tailer`` keeps streams as columnar ``segments``; ``query`` is what can be asked, ``engine``
answers it by DuckDB; ``sql_box`` answers one ``SELECT``. ``headrace.ui`` shows it in a browser.
"""
