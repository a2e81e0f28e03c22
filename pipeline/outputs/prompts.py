"""Read and write the measures of a metrics stage by prompt, from which means over several chains are made.

They are in a safetensors file beside ``metrics.json``: numbers alone, nothing that could run when it is read.
``rows`` has the ids of the prompts and ``texts`` identities of their texts; ``numerators/METRIC`` and
``denominators/METRIC`` have two numbers for each prompt, whose sums make the metric. Where all denominators are 1
they are left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from pipeline.foreign import ForeignDataError, read_plain
from pipeline.outputs.formats import LARGEST, PROMPTS

_ROWS, _TEXTS, _ABOVE, _BELOW = "rows", "texts", "numerators/", "denominators/"
_LIMIT = 1 << 30
_SHOWN = 60

Floats = NDArray[np.float64]
Sums = tuple[Floats, Floats]
"""Numerators and denominators, each of shape [P]."""


@dataclass(frozen=True)
class PromptMeasures:
    """Measures of P prompts.

    Attributes:
        rows: Ids of the prompts, ascending, shape [P].
        sums: Metric -> numerators and denominators, each of shape [P]; a denominator is 0 where a prompt has
            nothing to say.
        texts: Identities of their texts, equal for prompts of other sets with the same text; shape [P], or [0] if
            unknown.
    """

    rows: NDArray[np.int64]
    sums: Mapping[str, Sums]
    texts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


def write_prompts(folder: Path, measures: PromptMeasures) -> None:
    """Write the measures to the output of a stage; those with numbers that may not be read are left out."""
    tensors: dict[str, NDArray[Any]] = {_ROWS: np.ascontiguousarray(measures.rows, np.int64)}
    if len(measures.texts):
        tensors[_TEXTS] = np.ascontiguousarray(measures.texts, np.int64)
    for name, (above, below) in measures.sums.items():
        if _in_range(above) and _in_range(below):
            tensors[_ABOVE + name] = np.ascontiguousarray(above, np.float64)
            if not (below == 1).all():
                tensors[_BELOW + name] = np.ascontiguousarray(below, np.float64)
    (folder / PROMPTS).write_bytes(save(tensors))


def read_prompts(output: Path) -> PromptMeasures:
    """Read the measures of an output.

    Raises:
        ForeignDataError: The file holds something else.
        OSError: It is not there, or cannot be read.
    """
    try:
        tensors = load(read_plain(output / PROMPTS, _LIMIT))
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, ForeignDataError):
            raise
        raise ForeignDataError(f"these are no safetensors of numbers ({str(error)[:_SHOWN]!a})") from error
    rows = _tensor(tensors, _ROWS, np.int64, None)
    if not (rows[1:] > rows[:-1]).all():
        raise ForeignDataError(f"expected the ids in {_ROWS} to ascend")
    names = [name.removeprefix(_ABOVE) for name in tensors if name.startswith(_ABOVE)]
    sums = {name: _sums(tensors, name, len(rows)) for name in sorted(names)}
    texts = [_tensor(tensors, _TEXTS, np.int64, len(rows))] if _TEXTS in tensors else []
    return PromptMeasures(rows, sums, *texts)


def _sums(tensors: Mapping[str, NDArray[Any]], name: str, prompts: int) -> Sums:
    above = _tensor(tensors, _ABOVE + name, np.float64, prompts)
    below = _tensor(tensors, _BELOW + name, np.float64, prompts) if _BELOW + name in tensors else np.ones(prompts)
    if (below < 0).any():
        raise ForeignDataError(f"expected no number below 0 in {_shown(_BELOW + name)}")
    return above, below


def _tensor(tensors: Mapping[str, NDArray[Any]], name: str, kind: type, length: int | None) -> NDArray[Any]:
    if name not in tensors:
        raise ForeignDataError(f"expected a tensor {_shown(name)}, got {_listed(tensors)}")
    tensor = tensors[name]
    if tensor.dtype != kind or tensor.ndim != 1 or (length is not None and len(tensor) != length):
        wanted = f"{np.dtype(kind)} of shape [{'P' if length is None else length}]"
        raise ForeignDataError(
            f"expected {wanted} in {_shown(name)}, got {tensor.dtype} of shape {list(tensor.shape)}"
        )
    if kind is np.float64 and not _in_range(tensor):
        raise ForeignDataError(f"expected numbers between {-LARGEST:g} and {LARGEST:g} in {_shown(name)}")
    return tensor


def _in_range(numbers: Floats) -> bool:
    return bool((np.abs(numbers) <= LARGEST).all())


def _shown(name: str) -> str:
    return ascii(name[:_SHOWN])


def _listed(names: Iterable[str]) -> str:
    return ", ".join(name[:_SHOWN] for name in sorted(names)[:3]) or "none"
