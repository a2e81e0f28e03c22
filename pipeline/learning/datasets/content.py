"""What a file of rows is by its first bytes, where its name says another thing or the rows are not in it."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.errors import DataError
from pipeline.learning.datasets.files import PARQUET

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
