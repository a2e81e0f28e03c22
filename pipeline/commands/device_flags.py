"""``--num-gpus``, ``--gpu-ids`` and ``--device`` on the command line of a run, as overrides of its configuration.

They go before what the configuration says: together they replace it, so that ``--num-gpus 2`` means two GPUs also
where a file says ``gpu_ids: [0, 1, 2, 3]`` or ``device: cpu``.

``distributed.gpu_list=0,1,2,3`` means these four, though Hydra would take values with commas for several runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipeline.config.schema import DeviceChoice
from pipeline.errors import ConfigError

FLAGS = ("--num-gpus", "--gpu-ids", "--device")
_BARE_IDS = re.compile(r"(\+{0,2}distributed\.gpu_(?:ids|list))=(\d+(?:,\d+)*)")


def as_overrides(arguments: Sequence[str]) -> list[str]:
    """Turn the flags into overrides, placed after all others, so that they win; everything else stays as it is.

    Args:
        arguments: A command line. Ids may be separated by spaces or commas: ``--gpu-ids 0 2 3``. Those of a
            setting may stand without brackets.

    Raises:
        ConfigError: A flag has no value or a wrong one, or is given twice.
    """
    given: dict[str, list[str]] = {}
    others: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if flag not in FLAGS:
            others.append(_with_brackets(word))
            continue
        if flag in given:
            raise ConfigError(f"{flag} is given twice")
        given[flag] = [value] if equals else _values(flag, rest)
    if not given:
        return others
    values = {
        "device": _device(given["--device"]) if "--device" in given else DeviceChoice.auto.name,
        "distributed.num_gpus": _count(given["--num-gpus"]) if "--num-gpus" in given else "null",
        "distributed.gpu_ids": _ids(given["--gpu-ids"]) if "--gpu-ids" in given else "null",
        "distributed.gpu_list": "null",
    }
    # Not at the very end: a flag of Hydra's that stands there may take the next word for its value.
    places = [place for place, word in enumerate(others, 1) if "=" in word and not word.startswith("--")]
    end = max(places, default=0)
    return [*others[:end], *(f"{key}={value}" for key, value in values.items()), *others[end:]]


def _with_brackets(word: str) -> str:
    bare = _BARE_IDS.fullmatch(word)
    return f"{bare[1]}=[{bare[2]}]" if bare else word


def _values(flag: str, rest: list[str]) -> list[str]:
    """Take the values that follow a flag: one, or as many numbers as there are."""
    if flag != "--gpu-ids":
        return [rest.pop(0)] if rest and not rest[0].startswith("--") and "=" not in rest[0] else []
    taken = []
    while rest and not rest[0].startswith("--") and "=" not in rest[0]:
        taken.append(rest.pop(0))
    return taken


def _device(values: Sequence[str]) -> str:
    names = [choice.name for choice in DeviceChoice]
    if len(values) != 1 or values[0] not in names:
        raise ConfigError(f"{' '.join(['--device', *values])}: one of {', '.join(names)}")
    return values[0]


def _count(values: Sequence[str]) -> str:
    if len(values) != 1 or not values[0].isdigit():
        raise ConfigError(f"{' '.join(['--num-gpus', *values])}: how many GPUs, as in --num-gpus 2")
    return values[0]


def _ids(values: Sequence[str]) -> str:
    ids = [entry for value in values for entry in value.split(",") if entry]
    if not ids or not all(entry.isdigit() for entry in ids):
        raise ConfigError(f"{' '.join(['--gpu-ids', *values])}: ids of GPUs, as in --gpu-ids 0 2 3")
    return f"[{','.join(ids)}]"
