"""Reading files: values as written, and faults named by file and line."""

import gzip
import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.learning.datasets import files
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.datasets.files import Record, read_records
from pipeline.learning.datasets.from_files import FilesConfig
from pipeline.learning.datasets.prepared import prepare

ROWS = [{"prompt": "eins", "n": 1}, {"prompt": "zwei ü", "n": 2}]


def test_json_lines_skip_blank_lines_and_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\n  {"prompt": "\xc3\xbc"}')
    assert list(read_records(path)) == [
        Record(f"{path}:1", {"prompt": "a"}),
        Record(f"{path}:3", {"prompt": "ü"}),
    ]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.json", "a.ndjson", "list.json"])
def test_json_in_other_wrappings(tmp_path: Path, name: str) -> None:
    text = json.dumps(ROWS) if name == "list.json" else "".join(json.dumps(row) + "\n" for row in ROWS)
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    assert [record.data for record in read_records(path)] == ROWS


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_csv_quotes_line_breaks_and_long_fields(tmp_path: Path, name: str) -> None:
    mark = "," if name.endswith("csv") else "\t"
    path = tmp_path / name
    long = "x" * 200_000
    path.write_text(f'prompt{mark}n\n"two\nlines, ""quoted"""{mark}1\n\n{long}{mark}2\n', encoding="utf-8-sig")
    records = list(read_records(path))
    assert [record.data for record in records] == [
        {"prompt": 'two\nlines, "quoted"', "n": "1"},
        {"prompt": long, "n": "2"},
    ]
    assert [record.place for record in records] == [f"{path}:2", f"{path}:5"]


def test_parquet_and_what_datasets_saves(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    with pa.ipc.new_file(str(tmp_path / "b.arrow"), table.schema) as whole:
        whole.write_table(table, max_chunksize=1)
    for name in ("a.parquet", "a.arrow", "b.arrow"):
        records = list(read_records(tmp_path / name))
        assert [record.data for record in records] == ROWS
        assert records[1].place == f"{tmp_path / name}: row 2"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"prompt": "a"}\n{"prompt": "b', r"a.jsonl:2: not valid JSON \(Unterminated string"),
        (
            "a.json",
            b'[{"prompt": "a"},\n{"prompt": }]',
            r"a.json:2: not valid JSON \(Expecting value, character 12\)",
        ),
        ("a.jsonl", b'{"n": 1}\n{"n": %s}' % (b"9" * 5000), r"a.jsonl:2: not valid JSON \(a number has too many"),
        (
            "a.json",
            b'[{"n": 1}, {"n": %s}]' % (b"9" * 5000),
            r"a.json: row 2: not valid JSON \(a number has too many",
        ),
        ("a.json", b'[{"prompt": "a"}, 7]', r"a.json: row 2: expected an object of columns .* found 7"),
        ("a.jsonl", b'{"prompt": "a", "n": {"x": 1, "x": 2}}', r"a.jsonl:1: has more than one column named 'x'"),
        ("a.jsonl", b"\n \n", r"a.jsonl: is empty; .* Write or fetch it again, or name another path"),
        ("a.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 50, mtime=0)[:-12], r"a.jsonl.gz: cannot be read .*cut off"),
        ("a.csv", b"prompt,n\na,1\nb\n", r"a.csv:3: has 1 fields where the header names 2: prompt, n"),
        ("a.tsv", b'prompt\tn\n"Why" he said\t1\n', r"a.tsv:2: not valid TSV .*to_csv"),
        ("a.parquet", b"PAR1 cut", r"a.parquet: not a whole Parquet file .*fetch it again"),
        ("a.txt", b"\xff", r"a.txt: not UTF-8 text"),
        # Files that stand for rows, and say what to do.
        ("a.jsonl", b"version https://git-lfs.github.com/spec/v1\noid sha256:a\nsize 1\n", "git lfs pull"),
        ("a.csv", b"/annex/objects/SHA256E-s10--ab.csv\n", "git annex get"),
        ("a.json", b"\n<!DOCTYPE html><html><body>404</body></html>", "web page"),
        ("a.jsonl", b"\x28\xb5\x2f\xfd\x00", "zstd -d"),
        ("a.csv", b"PK\x03\x04\x14\x00", "Excel"),
        ("a.csv", "prompt,solution\nü,1\n".encode("latin-1"), "iconv"),
        ("a.json", json.dumps(ROWS).encode("utf-16"), "in UTF-8"),
    ],
)
def test_a_damaged_file_is_one_readable_message(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said) as caught:
        list(read_records(tmp_path / name))
    assert len(str(caught.value).splitlines()) == 1


def test_a_table_holds_what_was_written(tmp_path: Path) -> None:
    def calls(**arguments: object) -> list[dict[str, object]]:
        return [{"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": arguments}}]}]

    said = {"default": None, "a": [1]}
    rows = [
        {"turns": [{"role": "user", "content": "a"}], "kept": {"a": 1}, "tools": [{"parameters": said}]},
        {"turns": calls(b="2"), "kept": {"b": None}, "tools": None},
    ]
    as_text = [row | {"tools": row["tools"] and [{"parameters": json.dumps(said)}]} for row in rows]
    table = pa.Table.from_pylist(as_text)
    tools = pa.list_(pa.struct([("parameters", pa.json_())]))
    table = table.set_column(2, "tools", pa.chunked_array([table["tools"].combine_chunks().cast(tools)]))
    short = [pa.array([[0.1], [2.5, None]], pa.list_(pa.float32())), pa.array([0.1, None], pa.float32())]
    for name, column in zip(("list", "short"), short, strict=True):
        table = table.append_column(name, column)
    pq.write_table(table, tmp_path / "a.parquet")
    # Turns and tools are rid of what only those of other rows have; elsewhere it may be meant.
    kept = [{"kept": {"a": 1, "b": None}}, {"kept": {"a": None, "b": None}}]
    more = [{"list": [0.1], "short": 0.1}, {"list": [2.5, None], "short": None}]
    expected = [row | own | numbers for row, own, numbers in zip(rows, kept, more, strict=True)]
    assert [record.data for record in read_records(tmp_path / "a.parquet")] == expected


HALF = r"'\w+' holds .u[dD]800, half of a character"


def test_what_separates_a_header_stands_outside_of_quotes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('"prompt";"right, by hand"\n"a, b";"1,5"\n')
    assert [record.data for record in read_records(tmp_path / "a.csv")] == [
        {"prompt": "a, b", "right, by hand": "1,5"}
    ]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", '{"prompt": "a"}\n{"prompt": "b \\ud800"}\n', rf"a.jsonl:2: {HALF}"),
        ("a.json", '{"prompt": "b \\ud800", "n": NaN}', rf"a.json: row 1: {HALF}"),
    ],
)
def test_half_a_character_is_refused_with_its_place(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=said) as caught:
        prepare(load_dataset(FilesConfig(kind="hf", path=str(tmp_path / name))), tmp_path / "out")
    str(caught.value).encode()  # it can be printed


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("a.jsonl", "a.jsonl:2"),
        ("list.json", "list.json: row 2"),
        ("one.json", "one.json: row 1"),
        ("a.csv", "a.csv:3"),
    ],
)
def test_a_row_that_is_too_large_is_refused_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str
) -> None:
    monkeypatch.setattr(files, "LONGEST_ROW", 2 << 20)
    large, path = "x" * (3 << 20), tmp_path / name
    rows = [{"prompt": "a"}, {"prompt": large}, {"prompt": "c"}]
    if name.endswith("csv"):
        path.write_text(f"prompt\na\n{large}\nc\n")
    else:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        path.write_text({"list.json": json.dumps(rows), "one.json": json.dumps(rows[1])}.get(name, lines))
    with pytest.raises(DataError, match=f"{place}: (this row takes more than 2 MiB|not valid CSV .*larger than)"):
        list(read_records(path))


def test_text_in_parquet_that_is_no_text_is_refused_with_its_row(tmp_path: Path) -> None:
    cells = pa.array([b"a", b"\xff\xfe", b"c"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 3, cells.buffers())
    broken = pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", "{"]))
    for column, said in ((text, "row 0: holds a text that is not UTF-8"), (broken, "row 1: .* not JSON")):
        pq.write_table(pa.table({"prompt": column}), tmp_path / "a.parquet")
        with pytest.raises(DataError, match=rf"a.parquet: after {said}"):
            list(read_records(tmp_path / "a.parquet"))


# Pieces of JSON beside random bytes: bytes alone are hardly ever close to being a row.
_PIECES = st.sampled_from(
    [
        b'{"prompt": "',
        b'"}',
        b"\n",
        b"\\ud800",
        b"\\udc00",
        b"[",
        b"]",
        b"{",
        b"}",
        b",",
        b'"a": 1',
        b"\xef\xbb\xbf",
    ]
)


@pytest.mark.properties
@given(st.lists(st.one_of(_PIECES, st.binary(max_size=4))).map(b"".join), st.sampled_from(["a.jsonl", "a.json"]))
def test_any_bytes_are_rows_or_one_message_with_the_place(content: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            for record in read_records(path):
                json.dumps(record.data)
        except DataError as error:
            said = str(error)
            assert said.startswith((f"{path}:", f"{path}: row "))
            assert said.startswith(f"{path}: is empty") or any(c.isdigit() for c in said[len(str(path)) :][:8])
            said.encode()


def test_columns_of_the_same_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt,solution,solution\na,1,2\n")
    table = pa.Table.from_arrays([pa.array(["a"])] * 3, names=["prompt", "solution", "solution"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    for name in ("a.csv", "a.parquet", "a.arrow"):
        with pytest.raises(DataError, match=rf"{name}: has more than one column named 'solution'"):
            list(read_records(tmp_path / name))


_TWO = [{"prompt": "a, b; c", "solution": "1"}, {"prompt": "ü", "solution": "2"}]
_LIST = json.dumps(_TWO).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "prompt;solution\n'a, b; c';1\nü;2\n".replace("'", '"').encode()),
        ("a.csv", "prompt\tsolution\na, b; c\t1\nü\t2\n".encode()),
        ("a.tsv", 'prompt,solution\n"a, b; c",1\nü,2\n'.encode()),
        ("a.jsonl", _LIST),
        ("a.json", b'{"version": 1, "data": ' + _LIST + b"}"),
        ("a.jsonl", gzip.compress("\n".join(map(json.dumps, _TWO)).encode(), mtime=0)),
    ],
)
def test_a_file_is_read_by_what_it_holds(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert [record.data for record in read_records(tmp_path / name)] == _TWO


def test_parquet_is_read_whatever_it_is_called(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(_TWO), tmp_path / "a.json")
    assert [record.data for record in read_records(tmp_path / "a.json")] == _TWO
