"""SQL that users write, and the DuckDB that answers it: shared by SQL apps and slice and dice.

``text`` shows mistakes at their place; ``duck`` opens DuckDB without access to anything, and ends
what takes too long.
"""
