"""What a process says of its device's memory."""

import sys
from types import SimpleNamespace

import pytest

from pipeline.engine.workers.work import CONTEXT_MB, begin_measuring, give_back, held_mb, limit, peak_mb


class Cuda:
    """Stands in for `torch.cuda`."""

    def __init__(self, *, initialized: bool = True) -> None:
        self.called: list[str] = []
        self.shares: list[float] = []
        self.used = 3 * 2**30
        self._initialized = initialized

    def is_initialized(self) -> bool:
        return self._initialized

    def reset_peak_memory_stats(self, device: str) -> None:
        self.called.append(f"reset {device}")

    def max_memory_reserved(self, device: str) -> int:
        return 3 * 2**30

    def memory_reserved(self, device: str) -> int:
        return 2**30

    def max_memory_allocated(self, device: str) -> int:
        return self.used

    def get_device_properties(self, device: str) -> SimpleNamespace:
        return SimpleNamespace(total_memory=80 * 2**30)

    def current_device(self) -> int:
        return 0

    def set_per_process_memory_fraction(self, share: float, device: object) -> None:
        if not isinstance(device, int):
            raise ValueError(f"Expected a torch.device with a specified index or an integer, but got:{device}")
        self.shares.append(share)

    def empty_cache(self) -> None:
        self.called.append("empty")


def test_the_context_counts_besides_what_torch_has_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    begin_measuring("cuda:1")
    give_back("cuda:1")
    assert cuda.called == ["empty", "reset cuda:1", "empty"]
    assert peak_mb("cuda:1") == 3 * 1024 + CONTEXT_MB
    assert held_mb("cuda:1") == 1024 + CONTEXT_MB


def test_a_job_beside_others_is_held_to_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    limit("cuda", 8 * 1024 + CONTEXT_MB)
    limit("cuda", 0)
    limit("cuda", 10**6)
    limit("cpu", 5)
    assert cuda.shares == [0.1, 1.0, 1.0]
