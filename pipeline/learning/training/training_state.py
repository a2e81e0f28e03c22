"""All that decides how a training goes on, taken down and put back: model, optimizer, random generators."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pipeline.errors import JobError
from pipeline.files import json_text, open_plain
from pipeline.foreign import parse_json, read_plain
from pipeline.learning.training.checkpoint import State
from pipeline.learning.training.distributed import ALONE, Ranks
from pipeline.outputs.formats import OPTIMIZER

OPTIMIZER_SETTINGS = "optimizer.json"
"""Beside `OPTIMIZER`, what of it are no tensors."""
_OF_8_BITS = {"qmap1", "qmap2", "absmax1", "absmax2"}
"""How bitsandbytes reads moments in 8 bits: the numbers that these stand for, and the largest of each block."""


def training_state(model: nn.Module, optimizer: torch.optim.Optimizer, **values: Any) -> State:
    """Everything that decides how a training goes on; where ranks have spread the model, this one's part.

    Args:
        model: Its trained parameters and its buffers are saved; frozen parameters come with the model.
        optimizer: Its state is saved exactly, tensor by tensor.
        values: What else the training needs, as plain data.
    """
    tensors = {f"model.{name}": tensor for name, tensor in _model_tensors(model).items()}
    moments, plain = _optimizer_state(optimizer)
    random_tensors, random_values = random_state()
    return State(
        {**tensors, **moments, **{f"random.{name}": tensor for name, tensor in random_tensors.items()}},
        {"optimizer": plain, "random": random_values, "own": values},
    )


def _optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors of an optimizer by name, and all else that it keeps, as plain data."""
    tensors: dict[str, Tensor] = {}
    loose: dict[str, Any] = {}
    # That of bitsandbytes hides its tensors from FSDP.
    described = torch.optim.Optimizer.state_dict(optimizer)
    for index, entry in described["state"].items():
        for name, value in entry.items():
            if isinstance(value, Tensor):
                # A table of bitsandbytes is one tensor for all weights, and files have no such.
                tensors[f"optimizer.{index}.{name}"] = value.clone() if name in _OF_8_BITS else value
            elif value is None or isinstance(value, (bool, int, float, str)):
                loose.setdefault(str(index), {})[name] = value
            else:
                raise JobError(
                    f"{type(optimizer).__name__} keeps a {type(value).__name__} as '{name}': a checkpoint holds "
                    "tensors and plain values only. Use an optimizer of torch.optim, such as AdamW."
                )
    return tensors, {"state": loose, "param_groups": described["param_groups"]}


def save_optimizer(folder: Path, optimizer: torch.optim.Optimizer, ranks: Ranks = ALONE) -> None:
    """Write what an optimizer keeps as one process would, for `restore_optimizer`. All ranks must call it."""
    tensors, plain = _optimizer_state(optimizer)
    whole = {name: ranks.whole(tensor).detach().cpu().contiguous() for name, tensor in tensors.items()}
    if ranks.is_first:
        save_file(whole, folder / OPTIMIZER)
        (folder / OPTIMIZER_SETTINGS).write_text(json_text(plain) + "\n")


def restore_optimizer(folder: Path, optimizer: torch.optim.Optimizer, ranks: Ranks = ALONE) -> None:
    """Put an optimizer that was made anew into the state that an earlier training has left.

    Raises:
        JobError: There is none in the folder, or it is of another model.
    """
    try:
        plain = parse_json(read_plain(folder / OPTIMIZER_SETTINGS))
        with open_plain(folder / OPTIMIZER):
            tensors = load_file(folder / OPTIMIZER)
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        for name, tensor in tensors.items():
            _, index, kind = name.split(".", 2)
            if tensor.ndim and kind not in _OF_8_BITS and tensor.shape != weights[int(index)].shape:
                raise ValueError(f"{kind} of weight {index} is {_shape(tensor)}")
        _load_optimizer(optimizer, tensors, plain, ranks)
    except (OSError, SafetensorError, ValueError, KeyError, IndexError, TypeError) as error:
        raise JobError(
            f"{folder}: training cannot go on with the optimizer that was left there: {error}. Compute that round "
            "again: `python -m pipeline store invalidate`"
        ) from error


def _load_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], plain: Mapping[str, Any], ranks: Ranks
) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    entries: dict[int, dict[str, Any]] = {}
    for index, values in plain["state"].items():
        entries.setdefault(int(index), {}).update(values)
    for full_name in tensors:
        if full_name.startswith("optimizer."):
            tensor = tensors[full_name]
            _, index, name = full_name.split(".", 2)
            part = ranks.part(tensor, parameters[int(index)])
            # A copy of what is a part, so that the whole is let go of before the next is read.
            entries.setdefault(int(index), {})[name] = part if part is tensor else part.clone()
    groups = [
        {name: tuple(value) if isinstance(now.get(name), tuple) else value for name, value in saved.items()}
        for now, saved in zip(optimizer.param_groups, plain["param_groups"], strict=True)
    ]
    optimizer.load_state_dict({"state": entries, "param_groups": groups})


def state_problem(state: State, model: nn.Module, optimizer: torch.optim.Optimizer) -> str | None:
    """Say why a training of this model cannot go on from a state, or None if it can."""
    own = {f"model.{name}": tensor for name, tensor in _model_tensors(model).items()}
    saved = {name for name in state.tensors if name.startswith("model.")}
    if odd := sorted(set(own) ^ set(saved)):
        return f"its model has other tensors ({', '.join(odd[:3])})"
    for name, tensor in own.items():
        found = state.tensors[name]
        if (tensor.shape, tensor.dtype) != (found.shape, found.dtype):
            return f"its {name} is {_shape(found)} instead of {_shape(tensor)}"
    groups = [len(group["params"]) for group in state.values["optimizer"]["param_groups"]]
    if groups != [len(group["params"]) for group in optimizer.param_groups]:
        return "its optimizer has other groups of parameters"
    return None


def restore_training(
    state: State, model: nn.Module, optimizer: torch.optim.Optimizer, *, ranks: Ranks = ALONE
) -> dict[str, Any]:
    """Put a model, its optimizer and all random generators into a saved state.

    Args:
        state: What `training_state` made, of a model for which `state_problem` finds nothing.
        model: Set in place.
        optimizer: Of that model, as it was made anew.
        ranks: Where the training is done by several: as many as before, or fewer, or more.

    Returns:
        The values that were given to `training_state`.
    """
    with torch.no_grad():
        for name, tensor in _model_tensors(model).items():
            tensor.copy_(ranks.part(state.tensors[f"model.{name}"], tensor))
    _load_optimizer(optimizer, state.tensors, state.values["optimizer"], ranks)
    prefix = "random."
    tensors = {name[len(prefix) :]: state.tensors[name] for name in state.tensors if name.startswith(prefix)}
    restore_random_state(tensors, state.values["random"])
    own: dict[str, Any] = state.values["own"]
    return own


def random_state() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The global generators of torch (CPU and every GPU), numpy and Python, as tensors and plain values."""
    version, words, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = np.random.get_state(legacy=True)
    tensors = {"torch": torch.get_rng_state(), "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64))}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        tensors |= {f"cuda.{index}": one for index, one in enumerate(torch.cuda.get_rng_state_all())}
    values = {
        "python": [version, list(words), gauss],
        "numpy": [str(kind), int(place), int(has_gauss), float(cached)],
    }
    return tensors, values


def restore_random_state(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Set the global generators to what `random_state` returned. GPUs that are not here are passed over."""
    torch.set_rng_state(tensors["torch"])
    for name, tensor in tensors.items():
        if name.startswith("cuda.") and int(name[5:]) < torch.cuda.device_count():
            torch.cuda.set_rng_state(tensor, int(name[5:]))
    kind, place, has_gauss, cached = values["numpy"]
    np.random.set_state((kind, tensors["numpy"].numpy().astype(np.uint32), place, has_gauss, cached))
    version, words, gauss = values["python"]
    random.setstate((version, tuple(words), gauss))


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Trained parameters and saved buffers by name; those that are tied appear once."""
    saved = set(model.state_dict())
    trained = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    return {**trained, **{name: tensor for name, tensor in model.named_buffers() if name in saved}}


def _shape(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
