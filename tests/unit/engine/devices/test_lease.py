"""Leases within one process, and what a program can find in their folder."""

import os
from pathlib import Path

import pytest

from pipeline.engine.devices.inventory import Device
from pipeline.engine.devices.select import LeaseSet, holders
from pipeline.errors import DeviceError

GPUS = [
    Device(kind="cuda", index=index, uuid=f"GPU-{index}", name="H200", memory_total_bytes=100 << 30)
    for index in range(4)
]


def held() -> list[str]:
    return sorted(holders(GPUS))


def test_a_set_is_held_and_given_back() -> None:
    lease = LeaseSet.acquire(GPUS[:2], experiment="mine")
    assert held() == ["GPU-0", "GPU-1"]
    holder = holders(GPUS)["GPU-0"]
    assert (holder.pid, holder.experiment) == (os.getpid(), "mine")
    assert f"'mine' (pid {os.getpid()} since " in str(holder)
    lease.release()
    lease.release()
    assert held() == []


@pytest.mark.parametrize("what", ["open to all", "a link", "a file"])
def test_a_folder_that_others_could_have_made_is_refused(leases: Path, tmp_path: Path, what: str) -> None:
    if what == "open to all":
        leases.mkdir()
        leases.chmod(0o777)
    elif what == "a link":
        (tmp_path / "elsewhere").mkdir()
        leases.symlink_to(tmp_path / "elsewhere")
    else:
        leases.write_text("")
    with pytest.raises(DeviceError, match="PIPELINE_LEASE_DIR"):
        LeaseSet.acquire(GPUS)
