"""The tensors of a checkpoint on disk: in one file, or in one for each of the ranks that have spread them.

    tensors.safetensors             what one process has, or each of several
    tensors.00000.safetensors       the part of rank 0 of what is spread, and all that is not
    tensors.00001.safetensors       the part of rank 1 of what is spread

FSDP cuts along the first dimension, in the order of ranks, so a tensor is its parts one below the other, whoever
reads them. torch.distributed.checkpoint does as much, but what it writes of who has what is a pickle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor

from pipeline.learning.training.distributed import Ranks

_NAME = re.compile(r"tensors(\.\d{5})?\.safetensors")


def is_spread(tensors: Mapping[str, Tensor]) -> bool:
    """Whether ranks have parts of some of them."""
    return any(isinstance(tensor, DTensor) for tensor in tensors.values())


def file_name(tensors: Mapping[str, Tensor], ranks: Ranks) -> str:
    """Of the file that a rank writes."""
    return f"tensors.{ranks.rank:05}.safetensors" if is_spread(tensors) else "tensors.safetensors"


def is_file_name(name: str) -> bool:
    """Whether a file of a checkpoint holds tensors."""
    return _NAME.fullmatch(name) is not None


def own_part(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """What a rank writes of them: nothing that another one writes."""
    own = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, DTensor):
            if ranks.is_first:
                own[name] = tensor.detach().contiguous()
            continue
        place = tensor.device_mesh.get_coordinate()
        assert place is not None
        is_copy = any(where for where, how in zip(place, tensor.placements, strict=True) if how.is_replicate())
        part = tensor.to_local().detach()
        if not is_copy and part.numel():
            assert all(how.is_replicate() or how.is_shard(dim=0) for how in tensor.placements), tensor.placements
            own[name] = part.contiguous()
    return own


class TensorFiles(Mapping[str, Tensor]):
    """The tensors of files, each read when it is asked for: a rank keeps its part of them, never all at once."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Open files.

        Args:
            paths: Of all parts.

        Raises:
            SafetensorError: One cannot be read.
        """
        self._parts: dict[str, list[safe_open]] = {}
        for path in sorted(paths):
            file = safe_open(path, "pt")
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                self._parts.setdefault(name, []).append(file)

    def __getitem__(self, name: str) -> Tensor:
        # A copy: what safetensors returns lies in the mapped file, at any alignment.
        parts = [file.get_tensor(name) for file in self._parts[name]]
        tensor: Tensor = torch.cat(parts) if len(parts) > 1 else parts[0].clone()
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)
