"""Machines that are described rather than there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.doubles import fake_nvml

UseMachine = Callable[[str | dict[str, Any]], Path]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> UseMachine:
    """Make NVML describe a machine: one of `fake_nvml.MACHINES` or another. No GPU is hidden."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    return lambda described: fake_nvml.use(monkeypatch, tmp_path, described)


@pytest.fixture(autouse=True)
def leases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of leases of the test's own."""
    folder = tmp_path / "leases"
    monkeypatch.setenv("PIPELINE_LEASE_DIR", str(folder))
    return folder
