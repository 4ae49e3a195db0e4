"""Lines of JSON read column by column are what they are read row by row."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.bus import StreamSpec
from headrace.cli.arguments import parse_schema
from headrace.sources.row_decoder import ColumnReader, RowDecoder

SCHEMA = "id:int64,at:timestamp,name:string,ok:bool,x:float64"

JSON_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "x", "2013-01-31T05:15:00", "1969-07-20T20:17:40.5Z", "1", "-5"]),
    st.lists(st.integers(0, 3), max_size=2),
)


@example([{"at": ""}])
@given(
    st.lists(
        st.dictionaries(st.sampled_from(["id", "at", "name", "ok", "x"]), JSON_VALUES),
        min_size=1,
        max_size=4,
    )
)
def test_columns_at_once_are_what_rows_are(rows: list[dict[str, Any]]) -> None:
    """What the quick way takes, the careful way takes as well, and makes the same of it."""
    spec = StreamSpec("s", 1, parse_schema(SCHEMA))
    lines = [json.dumps(row).encode() for row in rows]
    quick = ColumnReader(spec).from_json(lines)
    if quick is not None:
        reader = RowDecoder(spec)
        assert quick.equals(reader.batch([reader.from_json(line) for line in lines]))
