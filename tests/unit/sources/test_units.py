"""Files are cut into stretches of whole rows, whatever is in them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bus.spec import StreamSpec
from headrace.errors import InvalidInputError
from headrace.sources import file_streams
from headrace.sources.file_streams import BoundedFileStream, text_splits
from headrace.sources.files import form_of, found_files
from headrace.sources.listing import BoundedSource, SourceFile, stream_of

SCHEMA = pa.schema([("text", pa.string()), ("n", pa.int64())])
TEXT = st.text(st.sampled_from('ab",\n\r {}'), max_size=12)


def stream(path: Path, *, is_csv: bool) -> BoundedFileStream:
    cut, header = text_splits(0, str(path), is_csv=is_csv)
    spec = StreamSpec("in", 1, SCHEMA)
    files = (SourceFile(str(path), path.stat().st_size, header),)
    form = "csv" if is_csv else "jsonl"
    return BoundedFileStream(
        "in",
        BoundedSource("x", **stream_of(spec), form=form, files=files, partitions=(tuple(cut),)),
    )


@pytest.mark.parametrize("is_csv", [True, False])
@given(texts=st.lists(TEXT, min_size=1, max_size=30), size=st.integers(1, 40), data=st.data())
def test_every_range_is_the_rows_of_the_file(
    is_csv: bool,
    texts: list[str],
    size: int,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Quotes, commas, line ends and blank lines within fields and between rows."""
    path = tmp_path_factory.mktemp("units") / "in"
    rows = [{"text": text, "n": n} for n, text in enumerate(texts)]
    if is_csv:
        out = io.StringIO()
        writer = csv.DictWriter(
            out, ["text", "n"], quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(rows)
        path.write_text(out.getvalue(), newline="")
    else:
        path.write_text("\n\n".join(map(json.dumps, rows)), newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_streams, "SPLIT_BYTES", size)
        patch.setattr(file_streams, "LEAST_READ", 1)
        found = stream(path, is_csv=is_csv)
    assert found.ends() == [len(rows)]
    low = data.draw(st.integers(0, len(rows)))
    high = data.draw(st.integers(low, len(rows)))
    parts = list(found.read(0, low, high))
    assert [row for part in parts for row in part.batch.to_pylist()] == rows[low:high]
    assert [at for part in parts for at in part.offsets.tolist()] == list(range(low, high))


def test_a_folder_has_the_files_whose_names_end_so(tmp_path: Path) -> None:
    for name in ("b.parquet", "a.csv", "sub/c.parquet", "_SUCCESS", ".x.parquet", "_log/d.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for start in (str(tmp_path), f"file://{tmp_path}"):
        every = [address for address, _ in found_files(start, None)]
        assert every == [f"{start}/{name}" for name in ("a.csv", "b.parquet", "sub/c.parquet")]
        assert [a for a, _ in found_files(f"{start}/*.parquet", None)] == [f"{start}/b.parquet"]
        assert len(found_files(f"{start}/*/*.parquet", "parquet")) == 1
        assert len(found_files(start, "parquet")) == 2
    with pytest.raises(InvalidInputError, match="no files at"):
        found_files(str(tmp_path / "none"), None)
    with pytest.raises(InvalidInputError, match="cannot be used"):
        found_files("nonsense://x/y", None)
    with pytest.raises(InvalidInputError, match=r"the format of x\.dat is unknown"):
        form_of("x.dat", None)


def test_json_that_is_no_object_is_told_by_its_line(tmp_path: Path) -> None:
    """Arrow's reader of JSON ends the process at a null."""
    for word in ("null", "[]", "7", '"a"', '"n": 1}', '{"n":' + "[" * 100_000):
        path = tmp_path / "in.jsonl"
        path.write_text(f'{word}\n{{"text": "a", "n": 1}}\n')
        with pytest.raises(InvalidInputError, match=r"in\.jsonl line 1: found"):
            list(stream(path, is_csv=False).read(0, 0))


def test_names_that_are_there_are_no_patterns(tmp_path: Path) -> None:
    path = tmp_path / "years [2013]" / "a*[1].csv"
    path.parent.mkdir()
    path.touch()
    for name in (path, path.parent):
        assert [address for address, _ in found_files(str(name), None)] == [str(path)]


def test_what_can_only_be_read_refuses_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "a", "n": 1}')
    found = stream(path, is_csv=False)
    with pytest.raises(InvalidInputError, match="stream 'in' is x here, by the settings, and can"):
        found.append_rows(pa.table({"text": ["b"], "n": [2]}))
    with pytest.raises(InvalidInputError, match="can only be read"):
        found.trim(0)
    [part] = found.read(0, 0, columns=[])
    assert (part.batch.num_rows, part.next_offset) == (1, 1)


@pytest.mark.parametrize("most", [1 << 20, 1 << 30])
def test_a_quote_that_opens_no_field_is_told_by_its_line(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is behind it is looked through once: again for each line would take minutes here."""
    path = tmp_path / "in.csv"
    rows = [f"row {n},{n}" for n in range(200_000)]
    rows[70_000] = 'a 5" pipe,1'
    path.write_text("\n".join(["text,n", *rows]))
    monkeypatch.setattr(file_streams, "SPLIT_BYTES", 1 << 16)
    monkeypatch.setattr(file_streams, "MOST_BYTES", most)
    with pytest.raises(InvalidInputError, match=r"in\.csv line 70002: a quote opens a field that"):
        stream(path, is_csv=True)
    rows[:2] = ['"over', 'two ""lines""",0']
    rows[69_000] = '"over\n\nthree",1'
    path.write_text("\n".join(["text,n", *rows]))
    with pytest.raises(InvalidInputError, match=r"in\.csv line 70004: a quote opens a field that"):
        stream(path, is_csv=True)
    path.write_text('text,"n\na,1\n')
    with pytest.raises(InvalidInputError, match=r"in\.csv line 1: a quote opens a field that is"):
        stream(path, is_csv=True)


def test_a_field_over_many_lines_is_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in.csv"
    text = 'a ""quote""\n\r\n' * 8_000
    path.write_text(f'text,n\n"{text}",1\nb,2\n', newline="")
    monkeypatch.setattr(file_streams, "SPLIT_BYTES", 1 << 16)
    found = [row for part in stream(path, is_csv=True).read(0, 0) for row in part.batch.to_pylist()]
    assert found == [{"text": text.replace('""', '"'), "n": 1}, {"text": "b", "n": 2}]
