"""The one door to the NVIDIA driver: NVML, through nvidia-ml-py, opened for a moment and closed again.

NVML answers without a CUDA context, sees the whole device whoever uses it, and knows nothing of
CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.errors import DeviceError

TEST_HOOK = "PIPELINE_TEST_NVML"
"""For tests alone: ``module:argument``. What `module.load(argument)` returns stands in for the module `pynvml`."""


class NoDriver(Exception):  # noqa: N818 - an answer, not a fault
    """This machine has no NVIDIA driver, or nothing to ask it with."""


@contextmanager
def session() -> Iterator[Any]:
    """Open NVML and close it again.

    Yields:
        The module `pynvml`, ready to be asked.

    Raises:
        NoDriver: There is no driver.
        DeviceError: There is one and it does not work, or it fails inside the block.
    """
    try:
        nvml = _binding()
    except ImportError as error:
        raise NoDriver("the package nvidia-ml-py is not installed") from error
    try:
        nvml.nvmlInit()
        try:
            yield nvml
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED):
            raise NoDriver(str(error)) from error
        raise DeviceError(_explain(nvml, error)) from error


def _binding() -> Any:
    hook = os.environ.get(TEST_HOOK)
    if hook:
        module, _, argument = hook.partition(":")
        return importlib.import_module(module).load(argument)
    import pynvml

    return pynvml


def _explain(nvml: Any, error: Exception) -> str:
    remedies = {
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "it was updated while it was loaded: reboot, or reload it",
        nvml.NVML_ERROR_NO_PERMISSION: "you may not open /dev/nvidia*: see its group, or the container's flags",
        nvml.NVML_ERROR_GPU_IS_LOST: "a GPU fell off the bus: see `dmesg`, then reset it or reboot",
    }
    remedy = remedies.get(getattr(error, "value", None), "see what `nvidia-smi` says")
    seen = str(error).rstrip(".")
    return f"the NVIDIA driver does not answer: {seen}. Try: {remedy}. To go on without GPUs use device=cpu."


def text(value: str | bytes) -> str:
    """A string of the binding; its releases before 11.5 return bytes."""
    return value.decode() if isinstance(value, bytes) else value
