"""Rows of files, one after the other, each with the place that a message about it should name."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from pipeline.datasets.files import ARROW, CSV, JSON, PARQUET, TEXT, format_of
from pipeline.errors import DataError

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
        raise DataError(f"{path}: is empty; it has no rows.")


def _open(path: Path) -> gzip.GzipFile | BufferedReader:
    return gzip.open(path, "rb") if path.name.lower().endswith(".gz") else path.open("rb")


def _json(path: Path) -> Iterator[Record]:
    if format_of(path) != ".json":
        yield from _json_lines(path)
        return
    with _open(path) as file:
        content = file.read().removeprefix(_BOM)
    try:
        whole = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
            # Many files of JSON lines are called .json too.
            yield from _json_lines(path)
            return
        raise _not_json(path, getattr(error, "lineno", 1), error) from error
    rows = whole if isinstance(whole, list) else [whole]
    for number, row in enumerate(rows, 1):
        place = f"{path}: row {number}"
        yield Record(place, _object(row, place))


def _json_lines(path: Path) -> Iterator[Record]:
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(_BOM).strip()
            if not text:
                continue
            place = f"{path}:{number}"
            try:
                row = json.loads(text.decode())
            except (ValueError, RecursionError) as error:
                raise _not_json(path, number, error) from error
            yield Record(place, _object(row, place))


def _not_json(path: Path, line: int, error: Exception) -> DataError:
    if isinstance(error, json.JSONDecodeError):
        said = f"not valid JSON ({error.msg}, character {error.colno})"
    else:
        said = f"not valid JSON in UTF-8 ({_line(error)})"
    whole = "" if format_of(path) == ".json" else " Each line must be one object."
    return DataError(f"{path}:{line}: {said}.{whole}")


def _object(row: object, place: str) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise DataError(f'{place}: expected an object of columns such as {{"prompt": ...}}, found {_short(row)}.')
    return row


def _csv(path: Path) -> Iterator[Record]:
    csv.field_size_limit(sys.maxsize)  # texts may be longer than the 128 KiB that csv allows by default
    dialect = "excel-tab" if format_of(path) == ".tsv" else "excel"
    number = 1
    try:
        with _open(path) as file:
            lines = (line.decode("utf-8-sig") for line in file)
            reader = csv.reader(lines, dialect, strict=True)
            header = next(reader, [])
            number = reader.line_num + 1
            for row in reader:
                if row:
                    yield Record(f"{path}:{number}", _fields(header, row, f"{path}:{number}"))
                number = reader.line_num + 1
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}:{number}: not valid {format_of(path)[1:].upper()} ({_line(error)}).") from error


def _fields(header: list[str], row: list[str], place: str) -> Mapping[str, Any]:
    if len(row) != len(header):
        raise DataError(
            f"{place}: has {len(row)} fields where the header names {len(header)}: {', '.join(header)}."
        )
    return dict(zip(header, row, strict=True))


def _parquet(path: Path) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH):
                for row in batch.to_pylist():
                    number += 1
                    yield Record(f"{path}: row {number}", row)
    except pa.ArrowException as error:
        raise _damaged(path, "Parquet", number, error) from error


def _arrow(path: Path) -> Iterator[Record]:
    import pyarrow as pa

    number = 0
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as batches:
            for batch in batches:
                for row in batch.to_pylist():
                    number += 1
                    yield Record(f"{path}: row {number}", row)
    except pa.ArrowException as error:
        raise _damaged(path, "Arrow", number, error) from error


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
