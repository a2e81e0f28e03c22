"""What the experiments of `benchmarks.gpu` share: figures with predictions, clocks, models of known shapes."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from pipeline.learning.models.load import frozen
from pipeline.learning.models.value import ValueConfig, ValueModel

Made = TypeVar("Made", bound=nn.Module)

_deterministic: Any = torch.utils.deterministic
_sdpa: Any = torch.backends.cuda

SHAPES = {
    "8b": (4096, 14336, 32, 32, 8),
    "1b": (2048, 8192, 16, 32, 8),
    "135m": (576, 1536, 30, 9, 3),
}
"""Hidden and intermediate size, layers, heads, heads of keys."""
_TINY = (64, 128, 2, 4, 2)


@dataclass(frozen=True)
class Figure:
    """One thing that was measured.

    Attributes:
        name: What.
        value: A number, yes or no, or what went wrong.
        unit: Of a number.
        low: Predicted to be at least this; None for no prediction.
        high: And at most this.
    """

    name: str
    value: float | bool | str | None
    unit: str = ""
    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        """The value, as people read it."""
        if isinstance(self.value, bool):
            return "yes" if self.value else "no"
        if isinstance(self.value, float):
            return f"{self.value:.4g} {self.unit}".rstrip()
        if isinstance(self.value, str):
            return self.value
        return "not measured" if self.value is None else f"{self.value} {self.unit}".rstrip()

    @property
    def predicted(self) -> str:
        """What was said before."""
        if self.low is None or self.high is None:
            return ""
        if isinstance(self.value, bool):
            return "yes" if self.low else "no"
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"

    @property
    def verdict(self) -> str:
        """How the two go together."""
        if self.low is None or self.high is None or self.value is None or isinstance(self.value, str):
            return ""
        return "lower" if self.value < self.low else "HIGHER" if self.value > self.high else "as predicted"


class Bench:
    """Where experiments run, and how large.

    Attributes:
        device: ``cpu`` or ``cuda``.
        tiny: Whether shapes are so small that they say nothing.
    """

    def __init__(self, device: str, *, tiny: bool) -> None:
        self.device = device
        self.tiny = tiny
        self.vocabulary = 500 if tiny else 128_256
        self._flags = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        self._fill = _deterministic.fill_uninitialized_memory
        self._cudnn = _sdpa.cudnn_sdp_enabled()

    @property
    def on_gpu(self) -> bool:
        """Whether there is a GPU to ask."""
        return self.device.startswith("cuda")

    def of(self, whole: int, tiny: int) -> int:
        """A size."""
        return tiny if self.tiny else whole

    def settle(self) -> None:
        """Put flags back, and give back what is left of an experiment."""
        torch.use_deterministic_algorithms(self._flags[0], warn_only=self._flags[1])
        _deterministic.fill_uninitialized_memory = self._fill
        _sdpa.enable_cudnn_sdp(self._cudnn)
        self.fresh()

    @contextmanager
    def determinism(self, mode: bool, *, warn_only: bool = False, fill: bool = False) -> Iterator[None]:
        """Compute so meanwhile."""
        torch.use_deterministic_algorithms(mode, warn_only=warn_only)
        _deterministic.fill_uninitialized_memory = fill
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(self._flags[0], warn_only=self._flags[1])
            _deterministic.fill_uninitialized_memory = self._fill

    # -- clocks and memory ---------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Until the GPU has done all that it was given."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], object]) -> float:
        """Of doing something once."""
        self.wait()
        start = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - start

    def ms(self, work: Callable[[], object], times: int = 20) -> float:
        """Of doing something, in the mean of several times after two."""
        for _ in range(2):
            work()
        times = self.of(times, 2)
        return self.seconds(lambda: [work() for _ in range(times)]) / times * 1e3

    def fresh(self) -> None:
        """Forget peaks and give back memory."""
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def taken(self) -> int | None:
        """Bytes of tensors now; None on a CPU."""
        return torch.cuda.memory_allocated() if self.on_gpu else None

    def peak(self) -> int | None:
        """Bytes of tensors at most since `fresh`; None on a CPU."""
        return torch.cuda.max_memory_allocated() if self.on_gpu else None

    # -- models --------------------------------------------------------------------------------------------------

    def config(self, size: str) -> LlamaConfig:
        """A shape of `SHAPES`."""
        hidden, inner, layers, heads, groups = _TINY if self.tiny else SHAPES[size]
        kind: Any = LlamaConfig  # which takes more than it says
        config: LlamaConfig = kind(
            hidden_size=hidden,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=groups,
            vocab_size=self.vocabulary,
            max_position_embeddings=8192,
            rope_theta=5e5,
            bos_token_id=0,
            eos_token_id=None,
            attn_implementation="sdpa",
            tie_word_embeddings=size != "8b",
        )
        return config

    def policy(self, size: str, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
        """A frozen language model of random weights, the same each time."""
        return frozen(self._made(lambda: LlamaForCausalLM(self.config(size)), dtype), self.device)

    def trained(self, size: str) -> PreTrainedModel:
        """One in float32 that is to be trained."""
        return self.policy(size, torch.float32).requires_grad_(True)

    def value(self, size: str, dtype: torch.dtype = torch.bfloat16) -> ValueModel:
        """A frozen value model with a V head that says different things of different tokens."""
        shape = ValueConfig(backbone=self.config(size), head="v", attn_implementation="sdpa")
        model = self._made(lambda: ValueModel(shape), dtype)
        with torch.no_grad():
            nn.init.normal_(model.head.weight, std=0.02)
        return frozen(model, self.device)

    def _made(self, make: Callable[[], Made], dtype: torch.dtype) -> Made:
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with torch.random.fork_rng(devices=[]), torch.device(self.device):
                torch.manual_seed(0)
                return make()
        finally:
            torch.set_default_dtype(before)

    def texts(self, count: int, length: int, *, uneven: bool = True) -> list[list[int]]:
        """Token ids, up to 7 fewer in some rows."""
        numbers = np.random.default_rng(0)
        lengths = [length - (row % 7 if uneven else 0) for row in range(count)]
        return [numbers.integers(1, self.vocabulary, size).tolist() for size in lengths]


Experiment = Callable[[Bench], list[Figure]]
