"""Rows of files or the hub, one after the other, each with the place that a message about it should name.

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
from functools import partial
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
from pipeline.learning.datasets.from_files import FilesDataset, Record

LONGEST_ROW = 16 << 20
"""Bytes of a row in its file. As objects of Python it takes up to 30 times as much."""
_NO_ROWS = {
    rb"version https://git-lfs": "a pointer of Git LFS. Fetch the file itself, in its folder: git lfs pull",
    rb"/annex/objects/|\.\./.*annex/objects/": "a pointer of git-annex. Fetch the file itself: git annex get",
    rb"\s*<(?:!doctype html|html|\?xml)": "a web page. Fetch the file; on the hub by /resolve/ in place of /blob/",
    rb"PK\x03\x04|\xd0\xcf\x11\xe0": "an archive or a table of Excel. Unpack it, or save it as CSV in UTF-8",
    rb"\x28\xb5\x2f\xfd|BZh|\xfd7zXZ": "packed by zstd, bzip2 or xz. Unpack it (zstd -d, bunzip2, xz -d)",
}
"""How files begin that stand for rows and hold none -> what to say of them."""
_GZIP, _BOM, _UTF_16 = b"\x1f\x8b", b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_BATCH = 1000


def read_records(path: Path) -> Iterator[Record]:
    """Rows of a file, in its order.

    Raises:
        DataError: The file is empty or damaged; the message names the file and, for text, the line.
    """
    readers = {JSON: _json, CSV: _csv, PARQUET: _parquet, ARROW: _arrow, TEXT: _text}
    empty = True
    try:
        with path.open("rb") as file:
            first = file.read(512)
        for begin, what in _NO_ROWS.items():
            if re.match(begin, first, re.IGNORECASE):
                raise DataError(f"{path}: is {what}.")
        kind = PARQUET[0] if first.startswith(b"PAR1") else format_of(path)
        for record in next(reader for formats, reader in readers.items() if kind in formats)(path):
            empty = False
            yield record
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be read ({_line(error)}). It may be cut off; fetch it again.") from error
    if empty:
        raise DataError(f"{path}: is empty; it has no rows. Write or fetch it again, or name another path.")


def _open(path: Path) -> gzip.GzipFile | BufferedReader:
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP or path.name.lower().endswith(".gz")
    return gzip.open(path, "rb") if packed else path.open("rb")


def _lines(path: Path) -> Iterator[bytes]:
    """Lines of a file, in UTF-8 though it may be in UTF-16, none of them longer than a row may be."""
    with _open(path) as file:
        number, wide = 1, file.peek(2)[:2] in _UTF_16
        text = TextIOWrapper(file, encoding="utf-16", newline="\n") if wide else None
        while line := file.readline(LONGEST_ROW + 1) if text is None else text.readline(LONGEST_ROW + 1).encode():
            yield _bounded(line, f"{path}:{number}").removeprefix(_BOM)
            number += 1


def _bounded(row: bytes, place: str) -> bytes:
    if len(row) > LONGEST_ROW:
        raise _too_large(place)
    return row


def _too_large(place: str) -> DataError:
    return DataError(
        f"{place}: this row takes more than {LONGEST_ROW >> 20} MiB, which no row may. Leave it out, or the "
        "column that makes it so large."
    )


# -- json --------------------------------------------------------------------------------------------------------


def _json(path: Path) -> Iterator[Record]:
    """Lines, or a list of rows, one row, or an object around the list: ``{"data": [...]}``."""
    with _open(path) as file:
        is_list = file.peek(64).lstrip(b"\xef\xbb\xbf\xff\xfe\0 \t\r\n").startswith(b"[")
        content = file.read() if is_list or format_of(path) == ".json" else None
    rows = None if content is None else _written(path, content)
    if rows is not None:
        for number, row in enumerate(rows, 1):
            place = f"{path}: row {number}"
            yield Record(place, _object(_bounded(bytes(row), place), place))
        return
    for number, line in enumerate(_lines(path), 1):
        if text := line.strip():
            yield Record(f"{path}:{number}", _object(text, f"{path}:{number}"))


def _written(path: Path, content: bytes) -> Sequence[msgspec.Raw | bytes] | None:
    """The rows of a file as they are written, so that one at a time becomes objects; None for one of lines."""
    content = content.decode("utf-16").encode() if content[:2] in _UTF_16 else content.removeprefix(_BOM)
    try:
        whole = msgspec.json.decode(content, type=list[msgspec.Raw] | dict[str, msgspec.Raw])
        return (_wrapped(whole) or [content]) if isinstance(whole, dict) else whole
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # many files of lines are called .json too; or it has what msgspec does not take, as NaN
    try:
        loaded = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
            return None
        raise _not_json(f"{path}:{getattr(error, 'lineno', 1)}", error) from error
    return [json.dumps(row).encode() for row in (loaded if isinstance(loaded, list) else [loaded])]


_WRAPS = ("data", "rows", "examples", "instances", "items", "records", "samples", "dataset", *SPLIT_WORDS)
"""What the list of all rows is called in files that hold one object."""


def _wrapped(whole: Mapping[str, msgspec.Raw]) -> list[msgspec.Raw]:
    """The rows of a file that holds ``{"data": [...]}`` or the like; none of any other."""
    lists = [name for name, value in whole.items() if bytes(value).lstrip()[:1] == b"["]
    if len(lists) != 1 or lists[0].lower() not in _WRAPS:
        return []
    rows = msgspec.json.decode(whole[lists[0]], type=list[msgspec.Raw])
    return rows if rows and bytes(rows[0]).lstrip()[:1] == b"{" else []


def _object(text: bytes, place: str) -> Mapping[str, Any]:
    """A row of JSON.

    Raises:
        DataError: It is none, has a column twice, or text that no file can hold.
    """
    try:
        row = json.loads(text.decode(), object_pairs_hook=partial(_different, place))
    except (ValueError, RecursionError) as error:
        raise _not_json(place, error) from error
    if not isinstance(row, dict):
        found = json.dumps(row)[:40]
        raise DataError(f'{place}: expected an object of columns such as {{"prompt": ...}}, found {found}.')
    if _SURROGATE.search(text):
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):04x}"
            raise DataError(
                f"{place}: holds {half}, half of a character, without the other half, which no file can hold as "
                "text; it was cut in the middle of a character."
            ) from error
    return row


def _not_json(place: str, error: Exception) -> DataError:
    at = f"{error.msg}, character {error.colno}" if isinstance(error, json.JSONDecodeError) else _line(error)
    return DataError(f"{place}: not valid JSON ({at}). Each row must be one object, in UTF-8.")


def _different(place: str, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        _check_different([name for name, _ in pairs], place)
    return row


def _check_different(names: Sequence[str], place: str | Path) -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(
            f"{place}: has more than one column named '{twice[0]}', of which a row could keep only one. Give each "
            "a name of its own, or leave one out."
        )


# -- tables ------------------------------------------------------------------------------------------------------


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

    kind = format_of(path)
    try:
        first = next(lines(), "")
        marks = [mark for mark in ("\t" if kind == ".tsv" else ",", "\t", ";", "|", ",") if mark in first]
        size = 0
        reader = csv.reader(lines(), delimiter=(marks or [","])[0], strict=True)
        header = [name.strip() for name in next(reader, [])]
        _check_different(header, path)
        number, size = reader.line_num + 1, 0
        for row in reader:
            if row and len(row) != len(header):
                names = f"{len(header)}: {', '.join(header)}"
                raise DataError(f"{path}:{number}: has {len(row)} fields where the header names {names}.")
            if row:
                yield Record(f"{path}:{number}", dict(zip(header, row, strict=True)))
            number, size = reader.line_num + 1, 0
    except (csv.Error, UnicodeDecodeError) as error:
        advice = " Write it in UTF-8 (iconv -t UTF-8)." if isinstance(error, UnicodeDecodeError) else ""
        raise DataError(f"{path}:{number}: not valid {kind[1:].upper()} ({_line(error)}).{advice}") from error


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
        yield Record(str(path), {"text": path.read_text(encoding="utf-8"), "folder": path.parent.name})
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({_line(error)}).") from error


def _damaged(path: Path, what: str, number: int, error: Exception) -> DataError:
    after = f" after row {number}" if number else ""
    return DataError(
        f"{path}: not a whole {what} file{after} ({_line(error)}). It may be cut off; fetch it again."
    )


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


# -- sources -----------------------------------------------------------------------------------------------------
# Rows of a whole source by split, whether local files or the hub. Only an id of the hub may use the network.

Rows = Callable[[], Iterator[Record]]


def open_splits(dataset: FilesDataset) -> dict[str, Rows]:
    """The rows of ``train``, and of ``validation`` and ``test`` where the source has such splits.

    Raises:
        DataError: A source is not there, cannot be reached, or lacks a split that was asked for.
    """
    config = dataset.source
    sources = {name: _open_source(location) for name, location in dataset.locations().items()}
    found: dict[str, Rows] = {}
    for split in ("train", "validation", "test"):
        asked: str | None = getattr(config, f"{split}_split")
        name, splits = sources.get(f"{split}_path", sources["path"])
        held_out = split != "train" and f"{split}_path" not in sources and asked is None
        if held_out and (split not in splits or config.train_split == split):
            continue  # it is cut from train
        chosen = asked or (split if split in splits or len(splits) != 1 else next(iter(splits)))
        if chosen not in splits:
            raise DataError(f"{name}: {unknown_name('split', chosen, splits)} Set {split}_split to choose.")
        found[split] = splits[chosen]
    return found


def _open_source(location: Location) -> tuple[str, Mapping[str, Rows]]:
    """What a source is called in messages, and its splits; local files are read when their rows are asked for."""
    if isinstance(location, HubDataset):
        return location.repo, _from_hub(location)
    return str(location.root), {name: partial(_all_of, files) for name, files in location.splits.items()}


def _all_of(files: Sequence[Path]) -> Iterator[Record]:
    return (record for path in files for record in read_records(path))


def _from_hub(location: HubDataset) -> Mapping[str, Rows]:
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
    return {str(name): partial(_numbered, f"{repo} [{name}]", rows) for name, rows in loaded.items()}


def _numbered(whose: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[Record]:
    return (Record(f"{whose} row {number}", row) for number, row in enumerate(rows, 1))
