"""Which GPUs this very process sees, for scripts that compute in their own process rather than in workers.

CUDA reads its variables once, when it is first touched; after that a change has no effect, so it is refused.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence

from pipeline.engine.devices.inventory import Device
from pipeline.engine.devices.mask import VISIBLE
from pipeline.errors import DeviceError


def show_only(devices: Sequence[Device], environ: MutableMapping[str, str] | None = None) -> None:
    """Make CUDA see these GPUs alone, numbered from 0 in this order.

    Args:
        devices: GPUs; none hides all.
        environ: What to change; `os.environ` if None.

    Raises:
        DeviceError: CUDA is in use in this process, or it could not show these together.
    """
    refuse_if_cuda_is_in_use()
    slices = [device for device in devices if device.slice_index is not None]
    if slices and len(devices) > 1:
        raise DeviceError(
            f"{', '.join(device.label for device in devices)}: CUDA shows a process one MIG slice and nothing "
            "else. Take one, or let the engine run one worker on each."
        )
    environ = os.environ if environ is None else environ
    environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    environ[VISIBLE] = ",".join(device.uuid or "" for device in devices)


def refuse_if_cuda_is_in_use() -> None:
    """Refuse where a change would come too late.

    Raises:
        DeviceError: torch has initialised CUDA in this process.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise DeviceError(
            "CUDA is in use in this process, so its GPUs can no longer be chosen: do it before the first CUDA "
            f"call, or set {VISIBLE} before the program starts"
        )
