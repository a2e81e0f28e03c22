"""Rows of files, one after the other, each with the place that a message about it should name.

A file may be of any size: one row is held at a time, and one that is too large is refused before it is read whole.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Any

import msgspec

from pipeline.errors import DataError, unknown_name
from pipeline.learning.datasets.files import (
    ARROW,
    CSV,
    JSON,
    PARQUET,
    SPLIT_WORDS,
    TEXT,
    HubDataset,
    Location,
    format_of,
    reaching,
    why_not,
)
from pipeline.learning.datasets.from_files import FilesConfig, FilesDataset

# -- content -----------------------------------------------------------------------------------------------------
# What a file of rows is by its first bytes, where its name says another thing or the rows are not in it.


_FIRST = 512
_GZIP = b"\x1f\x8b"
_PARQUET = b"PAR1"
_PACKED = {
    b"PK\x03\x04": "a ZIP archive or a table of Excel. Unpack it (unzip), or save the table as CSV in UTF-8",
    b"\xd0\xcf\x11\xe0": "a table of Excel. Save it as CSV in UTF-8",
    b"\x28\xb5\x2f\xfd": "packed by zstd. Unpack it: zstd -d",
    b"BZh": "packed by bzip2. Unpack it: bunzip2 -k",
    b"\xfd7zXZ": "packed by xz. Unpack it: xz -dk",
}
_PAGE = re.compile(rb"\s*(<!doctype html|<html|<\?xml)", re.IGNORECASE)


def is_zipped(path: Path) -> bool:
    """Whether a file is packed by gzip, whatever it is called."""
    with path.open("rb") as file:
        return file.read(2) == _GZIP


def check_content(path: Path) -> str:
    """Refuse a file that holds no rows but stands for them, with what to do.

    Returns:
        The suffix that its first bytes belong to, or "" where its name tells.

    Raises:
        DataError: It is a pointer to a file, a web page, or packed in a way that is not read here.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        first = file.read(_FIRST)
    if first.startswith(_PARQUET):
        return PARQUET[0]
    if first.startswith(b"version https://git-lfs"):
        raise DataError(
            f"{path}: is a pointer of Git LFS, and not the file itself. Fetch it, in its folder: git lfs pull; or "
            "download the file from the hub"
        )
    if len(first) < _FIRST and b"annex/objects/" in first and b"{" not in first:
        raise DataError(
            f"{path}: is a pointer of git-annex, and not the file itself. Fetch it, in its folder: git annex get "
            f"{path.name}"
        )
    if _PAGE.match(first):
        raise DataError(
            f"{path}: is a web page, and no file of rows. Fetch the file itself; on the hub its address has "
            "/resolve/ where the page's has /blob/"
        )
    for mark, what in _PACKED.items():
        if first.startswith(mark):
            raise DataError(f"{path}: is {what}")
    return ""


LONGEST_ROW = 16 << 20
"""Bytes of a row in its file. As objects of Python it takes up to 30 times as much."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_EACH_LINE = " Each line must be one object."
_BATCH = 1000
_BOM = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Record:
    """A row as the file has it.

    Attributes:
        place: ``data/train.jsonl:17``, for messages.
        data: Column -> value.
    """

    place: str
    data: Mapping[str, Any]


def read_records(path: Path) -> Iterator[Record]:
    """Rows of a file, in its order.

    Raises:
        DataError: The file is empty or damaged; the message names the file and, for text, the line.
    """
    readers = {JSON: _json, CSV: _csv, PARQUET: _parquet, ARROW: _arrow, TEXT: _text}
    empty = True
    try:
        kind = check_content(path) or format_of(path)
        read = next(reader for formats, reader in readers.items() if kind in formats)
        for record in read(path):
            empty = False
            yield record
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be read ({_line(error)}). It may be cut off; fetch it again.") from error
    if empty:
        raise DataError(
            f"{path}: is empty; it has no rows, but a header or blank lines at most. Write or fetch it again, or "
            "name another file as the path."
        )


def _open(path: Path) -> gzip.GzipFile | BufferedReader:
    return gzip.open(path, "rb") if path.name.lower().endswith(".gz") or is_zipped(path) else path.open("rb")


def _lines(path: Path) -> Iterator[bytes]:
    """Lines of a file, in UTF-8 though it may be in UTF-16, none of them longer than a row may be."""
    with _open(path) as file:
        number, wide = 1, file.peek(2)[:2] in _UTF_16
        text = TextIOWrapper(file, encoding="utf-16", newline="\n") if wide else None
        while line := file.readline(LONGEST_ROW + 1) if text is None else text.readline(LONGEST_ROW + 1).encode():
            if len(line) > LONGEST_ROW:
                raise _too_large(f"{path}:{number}")
            yield line.removeprefix(_BOM)
            number += 1


def _content(path: Path) -> bytes:
    """A whole file in UTF-8."""
    with _open(path) as file:
        content = file.read()
    return content.decode("utf-16").encode() if content[:2] in _UTF_16 else content.removeprefix(_BOM)


def _too_large(place: str) -> DataError:
    return DataError(
        f"{place}: this row takes more than {LONGEST_ROW >> 20} MiB, which no row may. Leave it out, or the "
        "column that makes it so large."
    )


def _json(path: Path) -> Iterator[Record]:
    if format_of(path) != ".json" and not _begins_as_list(path):
        yield from _json_lines(path)
        return
    content = _content(path)
    try:
        # The rows of a list as they are written, so that one at a time becomes objects.
        rows = _wrapped(path, content) or msgspec.json.decode(content, type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        yield from _json_whole(path, content)
        return
    for number, row in enumerate(rows, 1):
        yield _record(bytes(row), f"{path}: row {number}")


def _begins_as_list(path: Path) -> bool:
    """Whether a file of lines is one JSON array all the same."""
    line = next((line.strip() for line in _lines(path) if line.strip()), b"")
    return line.startswith(b"[")


_WRAPS = ("data", "rows", "examples", "instances", "items", "records", "samples", "dataset")
"""What the list of all rows is called in files that hold one object."""


def _wrapped(path: Path, content: bytes) -> list[msgspec.Raw] | None:
    """The rows of a file that holds ``{"data": [...]}`` or the like; None for any other.

    Raises:
        DataError: It holds several splits.
        msgspec.DecodeError: It is no JSON.
    """
    if not content.lstrip().startswith(b"{"):
        return None
    whole = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    lists = [name for name, value in whole.items() if bytes(value).lstrip()[:1] == b"["]
    splits = [name for name in lists if name.lower() in SPLIT_WORDS]
    if len(splits) > 1 and len(splits) == len(lists):
        raise DataError(
            f"{path}: holds {len(splits)} splits ({', '.join(splits)}). Write each list into a file of its own in "
            f"one folder ({', '.join(f'{name}.json' for name in splits)}), and give that folder as the path."
        )
    named = splits or [name for name in lists if name.lower() in _WRAPS]
    if len(named) != 1 or len(lists) != 1:
        return None
    rows = msgspec.json.decode(whole[named[0]], type=list[msgspec.Raw])
    return rows if rows and bytes(rows[0]).lstrip()[:1] == b"{" else None


def _json_whole(path: Path, content: bytes) -> Iterator[Record]:
    """One object, or rows of which one is no JSON; many files of JSON lines are called .json too."""
    if len(content) > LONGEST_ROW and _is_one_object(content):
        raise _too_large(f"{path}: row 1")
    try:
        whole = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
            yield from _json_lines(path)
            return
        raise _not_json(f"{path}:{getattr(error, 'lineno', 1)}", error) from error
    if isinstance(whole, dict) and len(whole) > 1 and _are_columns(list(whole.values())):
        raise DataError(
            f"{path}: holds columns ({', '.join(whole)}) and not rows. Write a list of rows, as pandas does by "
            "to_json(FILE, orient='records')."
        )
    escaped = _SURROGATE.search(content) is not None
    for number, row in enumerate(whole if isinstance(whole, list) else [whole], 1):
        place = f"{path}: row {number}"
        yield Record(place, _object(row, place, escaped=escaped))


def _are_columns(values: list[Any]) -> bool:
    """Whether values of an object are columns of a table: lists of texts and numbers, or tables by number."""
    if all(isinstance(value, dict) and value and all(key.isdecimal() for key in value) for value in values):
        return True
    lists = all(isinstance(value, list) and len(value) == len(values[0]) for value in values)
    return lists and all(isinstance(cell, (str, int, float)) for value in values for cell in value)


def _is_one_object(content: bytes) -> bool:
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return content.lstrip()[:1] == b"{"


def _json_lines(path: Path) -> Iterator[Record]:
    for number, line in enumerate(_lines(path), 1):
        text = line.strip()
        if text:
            yield _record(text, f"{path}:{number}", "" if format_of(path) == ".json" else _EACH_LINE)


def _record(text: bytes, place: str, advice: str = "") -> Record:
    if len(text) > LONGEST_ROW:
        raise _too_large(place)
    try:
        row = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise _not_json(place, error, advice) from error
    return Record(place, _object(row, place, escaped=_SURROGATE.search(text) is not None))


def _not_json(place: str, error: Exception, advice: str = "") -> DataError:
    if isinstance(error, json.JSONDecodeError):
        said = f"not valid JSON ({error.msg}, character {error.colno})"
    else:
        said = f"not valid JSON in UTF-8 ({_line(error)})"
    return DataError(f"{place}: {said}.{advice}")


def _object(row: object, place: str, *, escaped: bool) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise DataError(f'{place}: expected an object of columns such as {{"prompt": ...}}, found {_short(row)}.')
    if escaped:
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):04x}"
            raise DataError(
                f"{place}: holds {half}, one half of a pair that stands for a single character, without the other "
                "half. No file can hold that as text; it was cut in the middle of a character."
            ) from error
    return row


def _csv(path: Path) -> Iterator[Record]:
    csv.field_size_limit(LONGEST_ROW)  # by default 128 KiB, and texts may be longer
    number, size = 1, 0

    def lines() -> Iterator[str]:
        nonlocal size
        for line in _lines(path):
            size += len(line)
            if size > LONGEST_ROW:  # a text in quotes may go on over many lines
                raise _too_large(f"{path}:{number}")
            yield line.decode()

    try:
        dialect, said = _dialect(next(lines(), ""), format_of(path))
        size = 0
        reader = csv.reader(lines(), dialect, strict=True)
        if said:
            next(reader)
        header = [name.strip() for name in next(reader, [])]
        _check_different(header, path)
        number, size = reader.line_num + 1, 0
        for row in reader:
            if row:
                yield Record(f"{path}:{number}", _fields(header, row, f"{path}:{number}"))
            number, size = reader.line_num + 1, 0
    except (csv.Error, UnicodeDecodeError) as error:
        advice = (
            " Write it in UTF-8, as by: iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW.csv"
            if isinstance(error, UnicodeDecodeError)
            else " Its lines end as on old Macs: tr '\\r' '\\n' < FILE > NEW.csv"
            if "new-line" in str(error)
            else ""
        )
        raise DataError(
            f"{path}:{number}: not valid {format_of(path)[1:].upper()} ({_line(error)}).{advice}"
        ) from error


def _dialect(header: str, suffix: str) -> tuple[type[csv.Dialect], bool]:
    """How a table is written, by its first line: what stands between fields, and whether a space follows it.

    Returns:
        The dialect, and whether the first line only says what stands between fields, as Excel writes ``sep=;``.
    """
    said = re.fullmatch(r"sep=(.)\s*", header)
    usual = "\t" if suffix == ".tsv" else ","
    others = [mark for mark in ("\t", ";", "|", ",") if mark in header]
    mark = said[1] if said else usual if usual in header or not others else others[0]
    names = next(csv.reader([header], delimiter=mark), [])

    class Dialect(csv.excel):
        delimiter = mark
        skipinitialspace = len(names) > 1 and all(name.startswith(" ") for name in names[1:])

    return Dialect, said is not None


def _check_different(names: Sequence[str], path: Path) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(
            f"{path}: has more than one column named '{twice[0]}', of which a row could keep only one. Give each "
            "a name of its own, or leave one out."
        )


def _fields(header: list[str], row: list[str], place: str) -> Mapping[str, Any]:
    if len(row) != len(header):
        raise DataError(
            f"{place}: has {len(row)} fields where the header names {len(header)}: {', '.join(header)}."
        )
    return dict(zip(header, row, strict=True))


def _parquet(path: Path) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _check_different(file.schema_arrow.names, path)
            yield from _table_rows(path, "Parquet", file.iter_batches(batch_size=_BATCH))
    except pa.ArrowException as error:
        raise _damaged(path, "Parquet", 0, error) from error


def _arrow(path: Path) -> Iterator[Record]:
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as batches:
            _check_different(batches.schema.names, path)
            yield from _table_rows(path, "Arrow", batches)
    except pa.ArrowException as error:
        raise _damaged(path, "Arrow", 0, error) from error


def _table_rows(path: Path, what: str, batches: Iterable[Any]) -> Iterator[Record]:
    """Rows of record batches, turned into objects one by one."""
    import pyarrow as pa

    number = 0
    try:
        for batch in batches:
            for row in _objects(_shortest(batch)):
                number += 1
                if row is None:
                    raise _too_large(f"{path}: row {number}")
                yield Record(f"{path}: row {number}", row)
    except pa.ArrowException as error:
        raise _damaged(path, what, number, error) from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: row {number + 1}: holds a text that is not UTF-8 ({_line(error)}).") from error


def _shortest(batch: Any) -> Any:
    """A record batch whose numbers of single precision are as they are written: 0.1, not 0.10000000149011612."""
    import pyarrow as pa

    for at, field in enumerate(batch.schema):
        if pa.types.is_float32(field.type):
            batch = batch.set_column(at, field.name, batch.column(at).cast(pa.string()).cast(pa.float64()))
    return batch


def _objects(batch: Any) -> Iterator[dict[str, Any] | None]:
    """Rows of a record batch as objects; None for one that is too large."""
    if batch.nbytes <= LONGEST_ROW:
        with suppress(UnicodeDecodeError):  # found below, with its row
            yield from batch.to_pylist()
            return
    for at in range(batch.num_rows):
        row = batch.slice(at, 1)
        yield row.to_pylist()[0] if row.nbytes <= LONGEST_ROW else None


def _text(path: Path) -> Iterator[Record]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({_line(error)}).") from error
    yield Record(str(path), {"text": text, "folder": path.parent.name})


def _damaged(path: Path, what: str, number: int, error: Exception) -> DataError:
    after = f" after row {number}" if number else ""
    return DataError(
        f"{path}: not a whole {what} file{after} ({_line(error)}). It may be cut off; fetch it again."
    )


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


# -- sources -----------------------------------------------------------------------------------------------------
# Rows of a whole source by split, whether local files or the hub. Only an id of the hub may use the network.


Rows = Callable[[], Iterator[Record]]


@dataclass(frozen=True)
class Source:
    """An opened source.

    Attributes:
        name: As the configuration calls it, for messages.
        splits: Split -> a function that reads its rows.
    """

    name: str
    splits: Mapping[str, Rows]


def open_splits(dataset: FilesDataset) -> dict[str, Rows]:
    """The rows of ``train``, and of ``validation`` and ``test`` where the source has such splits.

    Raises:
        DataError: A source is not there, cannot be reached, or lacks a split that was asked for.
    """
    config = dataset.source
    sources = {name: open_source(location) for name, location in dataset.locations().items()}
    main = sources["path"]
    found = {
        "train": _only_or_named(main, config.train_split, "train"),
        "validation": _held_out(sources, "validation", config.validation_split, config),
        "test": _held_out(sources, "test", config.test_split, config),
    }
    return {name: rows for name, rows in found.items() if rows is not None}


def open_source(location: Location) -> Source:
    """Open a source; local files are read when their rows are asked for.

    Raises:
        DataError: The hub has no such dataset, or cannot be reached and the local cache has none.
    """
    if isinstance(location, HubDataset):
        return _from_hub(location)
    return Source(str(location.root), {name: _reader(files) for name, files in location.splits.items()})


def _reader(files: Sequence[Path]) -> Rows:
    return lambda: (record for path in files for record in read_records(path))


def _from_hub(location: HubDataset) -> Source:
    import datasets

    repo = location.repo
    with reaching("datasets", repo) as trouble:
        try:
            loaded = datasets.load_dataset(repo, name=location.subset, revision=location.revision)
        except Exception as error:
            # Errors of `datasets`, `huggingface_hub` and the HTTP client have no common base but this.
            reason, cause = why_not(error, trouble)
            raise DataError(
                f"{repo}: no file or folder of this name here (looked for {Path(repo).absolute()}), and the "
                f"Hugging Face hub does not give it: {reason}. On a machine with network run `hf download "
                f"--repo-type dataset {repo} --local-dir FOLDER`, copy FOLDER here and set the dataset's path to "
                "it; a local path needs no network."
            ) from cause
    splits = {str(name): _hub_reader(repo, str(name), rows) for name, rows in loaded.items()}
    return Source(repo, splits)


def _hub_reader(repo: str, split: str, rows: object) -> Rows:
    def read() -> Iterator[Record]:
        assert isinstance(rows, Sequence) or hasattr(rows, "__iter__")
        for number, row in enumerate(rows, 1):
            yield Record(f"{repo} [{split}] row {number}", row)

    return read


def _only_or_named(source: Source, asked: str | None, usual: str) -> Rows:
    name = asked or (usual if usual in source.splits or len(source.splits) != 1 else next(iter(source.splits)))
    if name not in source.splits:
        raise DataError(
            f"{source.name}: {unknown_name('split', name, source.splits)} Set {usual}_split to choose."
        )
    return source.splits[name]


def _held_out(sources: Mapping[str, Source], split: str, asked: str | None, config: FilesConfig) -> Rows | None:
    own = sources.get(f"{split}_path")
    if own is not None:
        return _only_or_named(own, asked, split)
    main = sources["path"]
    if asked is None and (split not in main.splits or config.train_split == split):
        return None
    return _only_or_named(main, asked, split)
