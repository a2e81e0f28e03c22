"""`training.compile`: kernels that torch.compile makes for one model, in the place of one for each operation."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

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
    """What torch.compile lacks here, or nothing.

    On a CPU a kernel is a C++ program; on a GPU triton makes it, whose way to the driver is a C program. Both are
    extensions of Python, found as torch and triton find what they are compiled with.
    """
    if on_gpu and not find_spec("triton"):
        return "kernels for GPUs need the package triton, which is not installed"
    if on_gpu:
        what, names = "GPUs need a C", [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    else:
        usual = "clang++" if sys.platform == "darwin" else "g++"
        what, names = "CPUs need a C++", [os.environ.get("CXX", usual)]
    if not any(map(shutil.which, names)):
        return f"kernels for {what} compiler, and there is no {' or '.join(names)}"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if sys.platform == "linux" and not header.is_file():
        return f"what is compiled needs the headers of Python (python3-dev), and there is no {header}"
    return ""
