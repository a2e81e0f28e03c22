"""Rows of files, one after the other, each with the place that a message about it should name.

A file may be of any size: one row is held at a time, and one that is too large is refused before it is read whole.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import msgspec

from pipeline.errors import DataError
from pipeline.learning.datasets.files import ARROW, CSV, JSON, PARQUET, TEXT, format_of

LONGEST_ROW = 16 << 20
"""Bytes of a row in its file. As objects of Python it takes up to 30 times as much."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_EACH_LINE = " Each line must be one object."
_BATCH = 1000
_BOM = b"\xef\xbb\xbf"


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
    read = next(reader for formats, reader in readers.items() if format_of(path) in formats)
    empty = True
    try:
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
    return gzip.open(path, "rb") if path.name.lower().endswith(".gz") else path.open("rb")


def _lines(path: Path) -> Iterator[bytes]:
    """Lines of a file, none of them longer than a row may be."""
    with _open(path) as file:
        number = 1
        while line := file.readline(LONGEST_ROW + 1):
            if len(line) > LONGEST_ROW:
                raise _too_large(f"{path}:{number}")
            yield line.removeprefix(_BOM)
            number += 1


def _too_large(place: str) -> DataError:
    return DataError(
        f"{place}: this row takes more than {LONGEST_ROW >> 20} MiB, which no row may. Leave it out, or the "
        "column that makes it so large."
    )


def _json(path: Path) -> Iterator[Record]:
    if format_of(path) != ".json":
        yield from _json_lines(path)
        return
    with _open(path) as file:
        content = file.read().removeprefix(_BOM)
    try:
        # The rows of a list as they are written, so that one at a time becomes objects.
        rows = msgspec.json.decode(content, type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        yield from _json_whole(path, content)
        return
    for number, row in enumerate(rows, 1):
        yield _record(bytes(row), f"{path}: row {number}")


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
    escaped = _SURROGATE.search(content) is not None
    for number, row in enumerate(whole if isinstance(whole, list) else [whole], 1):
        place = f"{path}: row {number}"
        yield Record(place, _object(row, place, escaped=escaped))


def _is_one_object(content: bytes) -> bool:
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return content.lstrip()[:1] == b"{"


def _json_lines(path: Path) -> Iterator[Record]:
    for number, line in enumerate(_lines(path), 1):
        text = line.strip()
        if number == 1 and text.startswith(b"[") and format_of(path) != ".json":
            raise DataError(
                f"{path}:1: begins with '[', as a JSON array does. This is a file of JSON lines, one object each, "
                'such as {"prompt": ...}: write one row a line without brackets and commas around, or let its name'
                " end in .json, which may be an array."
            )
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
    dialect = "excel-tab" if format_of(path) == ".tsv" else "excel"
    number, size = 1, 0

    def lines() -> Iterator[str]:
        nonlocal size
        for line in _lines(path):
            size += len(line)
            if size > LONGEST_ROW:  # a text in quotes may go on over many lines
                raise _too_large(f"{path}:{number}")
            yield line.decode()

    try:
        reader = csv.reader(lines(), dialect, strict=True)
        header = next(reader, [])
        _check_different(header, path)
        number, size = reader.line_num + 1, 0
        for row in reader:
            if row:
                yield Record(f"{path}:{number}", _fields(header, row, f"{path}:{number}"))
            number, size = reader.line_num + 1, 0
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}:{number}: not valid {format_of(path)[1:].upper()} ({_line(error)}).") from error


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
            for row in _objects(batch):
                number += 1
                if row is None:
                    raise _too_large(f"{path}: row {number}")
                yield Record(f"{path}: row {number}", row)
    except pa.ArrowException as error:
        raise _damaged(path, what, number, error) from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: row {number + 1}: holds a text that is not UTF-8 ({_line(error)}).") from error


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
