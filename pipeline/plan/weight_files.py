"""The files that hold a model's weights: which of a folder are loaded, what is in them, whether they are whole.

The library that loads them reads their headers alone here, which say where each tensor ends, and no weights.
"""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from pipeline.errors import ConfigError
from pipeline.files import open_plain
from pipeline.foreign import ForeignDataError, converted, read_model_json

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTERS = "adapter_config.json"
_LARGEST_INDEX = 100_000_000
_LFS = b"version https://git-lfs"


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers loads a model from: one of all weights, else the parts that an index names.

    Parts need not be there; there are none without an index.

    Raises:
        ForeignDataError: The index is none.
        OSError: It cannot be read.
    """
    first = _first_file(folder)
    if first is None:
        return []
    if first.suffix != ".json":
        return [first]
    index = read_model_json(first, dict[str, Any], _LARGEST_INDEX)
    if not isinstance(index.get("metadata"), dict):
        raise ForeignDataError("it has no object `metadata`, which transformers asks for")
    names = sorted(set(converted(index.get("weight_map"), dict[str, str]).values()))
    if odd := [name for name in names if Path(name).name != name]:  # what identifies a model is in its folder
        raise ForeignDataError(f"it names {odd[0]!r}, and parts must be beside it")
    return [folder / name for name in names]


def _first_file(folder: Path) -> Path | None:
    """The file of all weights, or the index, that transformers opens; None where it finds neither."""
    named = None
    with suppress(OSError, ForeignDataError):  # what is wrong with it is told where models are checked
        config = read_model_json(folder / "config.json", dict[str, Any])
        named = config.get("transformers_weights")
    # Another name is that of a file in the folder.
    names = [Path(named).name] if isinstance(named, str) else [WHOLE, INDEX]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def tensors_in(file: Path) -> dict[str, int]:
    """Numbers in each tensor of a safetensors file; nothing where it cannot be read."""
    return {name: math.prod(shape) for name, shape in shapes_in(file).items()}


def shapes_in(file: Path) -> dict[str, list[int]]:
    """As `tensors_in`, of each its size in every dimension."""
    try:
        with safe_open(file, "np") as opened:
            return {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
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
    if (folder / ADAPTERS).is_file():
        raise ConfigError(
            f"{given}: the folder holds {ADAPTERS}, so transformers would load the model that it names rather "
            "than the weights beside it. Merge the adapters into that model (merge_and_unload() of peft) and save "
            "it with save_pretrained; where they are merged already, remove that file."
        )
    try:
        files = weight_files(folder)
    except ForeignDataError as error:
        raise ConfigError(f"{given}: cannot read {folder / INDEX} ({error}). Get the model again.") from error
    if not files:
        raise ConfigError(f"{given}: {_without_files(folder)}")
    if missing := [file.name for file in files if not file.is_file()]:
        raise ConfigError(
            f"{given}: {missing[0]} is missing, one of {len(files)} files of weights that {INDEX} names "
            f"({len(missing)} of them are missing). Get the model again."
        )
    for file in files:
        if wrong := wrong_with(file):
            raise ConfigError(f"{given}: {file.name} {wrong}")


def _without_files(folder: Path) -> str:
    """What to say of a folder that has none of the files that are loaded."""
    there = sorted(folder.glob("*.safetensors"))
    if WHOLE in [file.name for file in there]:
        return f"{WHOLE} is no file, or a link to nothing. Get the model again."
    if there:
        return (
            f"the folder has neither {WHOLE} nor {INDEX}, one of which names what is loaded; there is "
            f"{there[0].name}. Get the model again, or save it with save_pretrained."
        )
    others = sorted({file.suffix for file in folder.iterdir() if file.suffix in (".bin", ".pt", ".pth", ".gguf")})
    also = f" (only {', '.join(others)})" if others else ""
    return (
        f"the folder holds no safetensors{also}. Weights in pickles are not loaded; save the model again with "
        "save_pretrained. Of a GGUF file give the path of the file."
    )


def wrong_with(file: Path) -> str:
    """What is wrong with a file of weights, to follow its name; "" where it is whole."""
    with open_plain(file, follow=True) as opened:
        if opened.read(len(_LFS)) == _LFS:
            return "only names a file of Git LFS. Fetch that with `git lfs pull`, or get the model again."
    try:
        with safe_open(file, "np"):
            return ""
    except SafetensorError as error:
        why = str(error).removeprefix("Error while deserializing header: ")
        return f"is cut off or damaged: it has {file.stat().st_size:,} bytes ({why}). Get the model again."
