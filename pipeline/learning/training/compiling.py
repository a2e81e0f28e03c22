"""`training.compile`: kernels that torch.compile makes for one model, in the place of one for each operation."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch
from torch import nn

from pipeline.errors import JobError
from pipeline.learning.training.logits import inner_model


@contextmanager
def compiled(model: nn.Module, asked: bool) -> Iterator[None]:
    """Have the layers of a model compiled meanwhile, when they are first run; the model is as before afterwards.

    Args:
        model: A causal language model, with adapters or without, or the backbone of a value model.
        asked: `training.compile`.

    Raises:
        JobError: There is no compiler.
    """
    if not asked:
        yield
        return
    on_gpu = next(model.parameters()).is_cuda
    if problem := no_compiler(on_gpu=on_gpu):
        raise JobError(f"training.compile=true: {problem}. Install it, or set training.compile=false")
    layers: nn.Module = inner_model(model).base_model
    # For one function torch compiles a few models and computes all others as if nothing had been asked for. Which
    # trainings a worker has done before must not decide about that, and so about last bits.
    torch.compiler.reset()
    # Sizes of batches change with every step, and each would be compiled anew.
    layers.compile(dynamic=True)
    try:
        yield
    finally:
        layers._compiled_call_impl = None


def no_compiler(*, on_gpu: bool) -> str:
    """What torch.compile lacks here, or nothing."""
    if on_gpu:
        return "" if find_spec("triton") else "kernels for GPUs need the package triton, which is not installed"
    named = os.environ.get("CXX", "g++")
    return "" if shutil.which(named) else f"kernels for CPUs need a C++ compiler, and there is no {named}"
