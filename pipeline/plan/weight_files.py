"""The files that hold a model's weights: which of a folder are loaded, what is in them, whether they are whole.

A safetensors file begins with the length of its header and the header, which says where each tensor ends. So a
file that was cut off, and a part that is missing, are told without reading any weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from pipeline.errors import ConfigError
from pipeline.files import open_plain
from pipeline.foreign import ForeignDataError, converted, read_json, read_json_file

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_LARGEST_INDEX = 100_000_000
_LONGEST_HEADER = 100_000_000
"""Bytes, as the format limits it."""
_LENGTH = 8
"""Bytes in which the length of the header is written."""
_LFS = b"version https://git-lfs"


@dataclass(frozen=True)
class _Tensor:
    shape: list[Annotated[int, Meta(ge=0)]]
    data_offsets: tuple[int, Annotated[int, Meta(ge=0)]]


def weight_files(folder: Path) -> list[Path]:
    """The files that a model is loaded from: one of all weights, else the parts that an index names, else all.

    Parts need not be there.

    Raises:
        ForeignDataError: The index is none.
        OSError: It cannot be read.
    """
    if (folder / WHOLE).is_file():
        return [folder / WHOLE]
    if (folder / INDEX).is_file():
        index = read_json_file(folder / INDEX, dict[str, Any], _LARGEST_INDEX, follow=True)
        return [folder / name for name in sorted(set(converted(index.get("weight_map"), dict[str, str]).values()))]
    return sorted(folder.glob("*.safetensors"))


def tensors_in(file: Path) -> dict[str, int]:
    """Numbers in each tensor of a safetensors file; nothing where it cannot be read."""
    try:
        return {name: math.prod(tensor.shape) for name, tensor in _header(file)[0].items()}
    except (OSError, ForeignDataError):
        return {}


def check_whole(given: str, folder: Path) -> None:
    """Refuse a model of which a part is missing or was cut off.

    Args:
        given: The setting, for the message.
        folder: Of the model.

    Raises:
        ConfigError: Says which file, and what is wrong with it.
        OSError: One may not be read.
    """
    try:
        files = weight_files(folder)
    except ForeignDataError as error:
        raise ConfigError(f"{given}: cannot read {folder / INDEX} ({error}). Get the model again.") from error
    if missing := [file.name for file in files if not file.is_file()]:
        raise ConfigError(
            f"{given}: {missing[0]} is missing, one of {len(files)} files of weights that {INDEX} names "
            f"({len(missing)} of them are missing). Get the model again."
        )
    for file in files:
        if wrong := _wrong_with(file):
            raise ConfigError(f"{given}: {file.name} {wrong}")


def _wrong_with(file: Path) -> str:
    """What is wrong with a file of weights, to follow its name; "" where it is whole."""
    try:
        _, end = _header(file)
    except ForeignDataError as error:
        return f"is no whole safetensors file ({error}). Get the model again."
    if (size := file.stat().st_size) == end:
        return ""
    if size < end:
        return f"is cut off: it has {size:,} of {end:,} bytes. Get the model again."
    return f"has {size:,} bytes, and what it says of its tensors ends at {end:,}. Get the model again."


def _header(file: Path) -> tuple[dict[str, _Tensor], int]:
    """What a file says of its tensors, and how many bytes it then has.

    Raises:
        ForeignDataError: It is no safetensors file, or ends before that.
        OSError: It cannot be read.
    """
    with open_plain(file, follow=True) as opened:
        start = opened.read(len(_LFS))
        if start == _LFS:
            raise ForeignDataError("it only names a file of Git LFS: fetch that with `git lfs pull`")
        length = int.from_bytes(start[:_LENGTH], "little")
        if len(start) < _LENGTH or length > _LONGEST_HEADER:
            raise ForeignDataError("it does not begin as one")
        opened.seek(_LENGTH)
        found = opened.read(length)
    if len(found) < length:
        raise ForeignDataError(f"it ends after {_LENGTH + len(found):,} bytes")
    header = read_json(found, dict[str, dict[str, Any]])
    tensors = {
        name: converted(entry, _Tensor)
        for name, entry in header.items()
        if name != "__metadata__"  # texts that whoever saved it has added
    }
    return tensors, _LENGTH + length + max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)
