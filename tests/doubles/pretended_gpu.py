"""A GPU on paper: tensors that say they are on cuda:0 and lie in the memory of the CPU.

All that is done only on GPUs runs here, and is held to what a GPU holds it to: tensors of two devices raise, NumPy
reads none of its memory, strict mode (`torch.use_deterministic_algorithms`) refuses what has no such kernel there.
What the host waits for and what it sends is counted. It says nothing of speed, of memory or of last bits.

Each operation arrives at `_Operations`, below autograd, and is done with the tensors of the CPU inside. Parts of
torch that decide by the device in C++ before that are replaced meanwhile, such as `Tensor.to` and autocast.
"""

from __future__ import annotations

import math
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.doubles.graphs import waits

CUDA = torch.device("cuda:0")
_ATTENTION = torch.ops.aten._scaled_dot_product_efficient_attention.default

COPIES = {"copy_", "_to_copy", "_foreach_copy_"}
"""Those that take tensors of two devices."""
REFUSED = {"put_", "histc", "kthvalue", "cumprod"}
"""Those that strict mode refuses whatever they are of; `cumsum` it refuses of floats."""


@dataclass
class Counts:
    """What the host has done, by operations.

    Attributes:
        waits: For numbers.
        sent: Copies to the device.
    """

    waits: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)


_counts = Counts()


class OnGpu(Tensor):
    """A tensor of the device.

    Attributes:
        held: What it is made of.
    """

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, real: Tensor) -> OnGpu:
        assert not isinstance(real, OnGpu)
        # For C++ it is of the CPU, as without CUDA autograd would have no thread for it.
        made: OnGpu = torch.Tensor._make_wrapper_subclass(
            cls,
            real.size(),
            strides=real.stride(),
            storage_offset=real.storage_offset(),
            dtype=real.dtype,
            device="cpu",
        )
        made.held = real
        return made

    device = property(lambda self: CUDA)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]

    def get_device(self) -> int:
        return 0

    def to(self, *args: Any, **options: Any) -> Tensor:
        device, dtype, copy = _asked(args, options)
        if device is not None and device.type != "cuda":
            return _done(torch.ops.aten._to_copy.default, (self.detach(),), _known(device=device, dtype=dtype))
        return super().to(dtype=self.dtype if dtype is None else dtype, copy=copy)

    def cpu(self, *_: Any) -> Tensor:
        return self.to("cpu")

    def cuda(self, *_: Any) -> Tensor:
        return self

    def tolist(self) -> Any:
        return self.to("cpu").tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()")

    __array__ = numpy

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        made: Tensor = OnGpu(self.held.detach().clone())
        made = nn.Parameter(made, self.requires_grad) if isinstance(self, nn.Parameter) else made
        memo[id(self)] = made
        return made

    @classmethod
    def __torch_dispatch__(cls, op: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _done(op, args, kwargs or {})


def _asked(args: Any, options: Any) -> tuple[torch.device | None, torch.dtype | None, bool]:
    """Device, type and whether to copy, as `Tensor.to` is asked for them."""
    device, dtype = options.get("device"), options.get("dtype")
    for given in args:
        if isinstance(given, Tensor):
            device, dtype = given.device, given.dtype
        elif isinstance(given, torch.dtype):
            dtype = given
        elif isinstance(given, str | torch.device):
            device = given
    return None if device is None else torch.device(device), dtype, bool(options.get("copy"))


def _known(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _sent(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    found: Tensor = _done(torch.ops.aten._to_copy.default, (tensor.detach(),), _known(device=CUDA, dtype=dtype))
    return found


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, op: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _done(op, args, kwargs or {})


def _done(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Do an operation where its tensors are."""
    name = op.overloadpacket.__name__
    tensors: list[Tensor] = []
    _mapped((args, kwargs), tensors.append)
    ours = [tensor for tensor in tensors if isinstance(tensor, OnGpu)]
    backward = torch._C._current_graph_task_id() != -1  # autograd makes some tensors by C++ alone
    asked = kwargs.get("device")
    on_gpu = torch.device(asked).type == "cuda" if asked is not None else bool(ours)
    if ours and len(ours) < len(tensors) and not backward:
        _check_mixed(name, args, [tensor for tensor in tensors if not isinstance(tensor, OnGpu)])
    if ours or on_gpu:
        _count(name, op, args, kwargs, on_gpu)
        _check_strict(name, tensors)
    there, named = _mapped((args, kwargs), lambda one: one.held if isinstance(one, OnGpu) else one)
    if asked is not None and on_gpu:
        named["device"] = torch.device("cpu")
    if "pin_memory" in named:
        named["pin_memory"] = False
    guard = torch._C._DisableTorchDispatch()
    try:
        found = (_efficient if op is _ATTENTION and ours else op)(*there, **named)
    finally:
        del guard
    if not (on_gpu or backward):
        return found

    def outside(made: Tensor) -> Tensor:
        if isinstance(made, OnGpu):
            return made
        same = [one for one in ours if one.held is made]  # done in place
        return same[0] if same else OnGpu(made)

    return _mapped(found, outside)


def _mapped(given: Any, do: Callable[[Tensor], Any]) -> Any:
    """The same with other tensors; `tree_map` of torch takes most of the time of a test."""
    if isinstance(given, Tensor):
        return do(given)
    if isinstance(given, list | tuple):
        return type(given)([_mapped(one, do) for one in given])
    return {name: _mapped(one, do) for name, one in given.items()} if isinstance(given, dict) else given


def _check_mixed(name: str, args: Any, theirs: list[Tensor]) -> None:
    if name in COPIES:
        return
    if name.startswith(("index", "_index", "_unsafe_index")) and isinstance(args[1], list | tuple):
        if isinstance(args[0], OnGpu):
            _counts.sent[name] += 1  # indices of the CPU
            return
        raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    if any(tensor.dim() for tensor in theirs):
        raise RuntimeError(f"Expected all tensors to be on the same device, cuda:0 and cpu: {name}")


def _count(name: str, op: Any, args: Any, kwargs: Any, on_gpu: bool) -> None:
    leaves = name in COPIES and not (isinstance(args[0], OnGpu) if name == "copy_" else on_gpu)
    if leaves or waits(op, args, kwargs):
        _counts.waits[name] += 1
    elif name in COPIES and any(not isinstance(given, OnGpu) for given in args if isinstance(given, Tensor)):
        _counts.sent[name] += 1


def _check_strict(name: str, tensors: list[Tensor]) -> None:
    if not torch.are_deterministic_algorithms_enabled() or torch.is_deterministic_algorithms_warn_only_enabled():
        return
    of_floats = name.startswith("cumsum") and tensors[0].dtype.is_floating_point
    if of_floats or name in REFUSED:
        raise RuntimeError(f"{name}_cuda_kernel does not have a deterministic implementation")


def _efficient(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *_: Any, scale: float | None = None, **__: Any
) -> tuple[Tensor, ...]:
    """The memory-efficient kernel, with the checks of its own."""
    rows, heads, queries, size = query.shape
    assert key.shape[1] == value.shape[1] == heads, "it has no heads that share keys"
    scores = query.float() @ key.float().transpose(-1, -2) * (size**-0.5 if scale is None else scale)
    if bias is not None:
        assert (bias.dtype, bias.shape) == (query.dtype, (rows, heads, queries, key.shape[2]))
        assert bias.stride(-1) == 1
        assert not any(stride % 16 for stride in bias.stride()[:-1]), "it would be copied before"
        scores = scores + bias.float()
    total = scores.logsumexp(-1)
    seen = ((scores - total[..., None]).exp() @ value.float()).to(query.dtype)
    nothing = torch.zeros((), dtype=torch.long)
    return seen, nn.functional.pad(total, (0, -queries % 32), value=math.nan), nothing, nothing


def _patch(patch: pytest.MonkeyPatch) -> None:
    plainly, autocast = Tensor.to, torch.autocast

    def to(self: Tensor, *args: Any, **options: Any) -> Tensor:
        device, dtype, _ = _asked(args, options)
        return (
            _sent(self, dtype) if device is not None and device.type == "cuda" else plainly(self, *args, **options)
        )

    class Autocast(autocast):
        def __init__(self, device_type: str, *args: Any, **options: Any) -> None:
            super().__init__("cpu" if device_type == "cuda" else device_type, *args, **options)

    patch.setattr(Tensor, "to", to)
    patch.setattr(Tensor, "cuda", lambda self, *_, **__: _sent(self))
    for name in ("tensor", "as_tensor"):
        patch.setattr(torch, name, _made(getattr(torch, name)))
    patch.setattr(torch.__future__, "_overwrite_module_params_on_conversion", True)
    for place in (torch, torch.amp, torch.amp.autocast_mode):
        patch.setattr(place, "autocast", Autocast)
    # Tensors of inference mode cannot be wrapped.
    mode: Any = torch.inference_mode
    patch.setattr(
        mode, "__enter__", lambda self: setattr(self, "_plain", torch.no_grad()) or self._plain.__enter__()
    )
    patch.setattr(mode, "__exit__", lambda self, *error: self._plain.__exit__(*error))
    about = types.SimpleNamespace(name="NVIDIA H200", total_memory=140 << 30, major=9, minor=0)
    for name, answer in {
        "is_available": True,
        "is_initialized": True,
        "init": None,
        "_lazy_init": None,
        "device_count": 1,
        "current_device": 0,
        "empty_cache": None,
        "synchronize": None,
        "reset_peak_memory_stats": None,
        "memory_allocated": 1 << 30,
        "max_memory_allocated": 1 << 30,
        "memory_reserved": 1 << 30,
        "max_memory_reserved": 1 << 30,
        "mem_get_info": (130 << 30, 140 << 30),
        "get_device_name": about.name,
        "get_device_capability": (9, 0),
        "get_device_properties": about,
        "is_bf16_supported": True,
        "is_current_stream_capturing": False,
        "get_rng_state_all": [],
        "manual_seed_all": None,
    }.items():
        patch.setattr(torch.cuda, name, lambda *_, _answer=answer, **__: _answer)


def _made(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def made(data: Any, *args: Any, **options: Any) -> Tensor:
        device = options.pop("device", None)
        if isinstance(data, OnGpu):
            return data
        found = make(data, *args, **options)
        return found if device is None else found.to(device)

    return made


@contextmanager
def pretended_gpu() -> Iterator[Counts]:
    """Have a GPU meanwhile; yields what the host does."""
    global _counts
    torch._C._ensureCUDADeviceGuardSet()
    _counts = Counts()
    with (
        pytest.MonkeyPatch.context() as patch,
        FakeTensorMode(),
        _Operations(),
    ):  # fake, or torch looks for a driver
        _patch(patch)
        yield _counts
