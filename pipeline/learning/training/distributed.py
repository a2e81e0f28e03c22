"""Train with several processes: split a batch, and combine gradients and weights.

    ddp     every rank has the whole model; gradients are added up once per optimizer step
    fsdp    weights, gradients and optimizer state are spread (FSDP2), gathered block by block while computing

Ranks that generate text together are connected in the same way; `learning.models.tensor_parallel` splits their
model.

The batch of an optimizer step does not depend on the number of ranks: each takes a part of the rows, and losses
are weighted by the whole batch, so the summed gradients equal those of one process. Only the last bits differ,
because the order of additions does.
"""

import math
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from pipeline.config.schema import DType, Sharding, Strategy
from pipeline.errors import JobError
from pipeline.learning.memory.fit import ModelShape, StateLayout, Workload, fit
from pipeline.machine.memory import memory_available_bytes

_BUCKET_BYTES = 64 << 20
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Settings by which ranks share a model.

    Attributes:
        strategy: ``ddp`` or ``fsdp``.
        sharding: Part that FSDP shards; ``no_shard`` is ddp.
        cpu_offload: Whether to keep sharded tensors in CPU memory. Without effect on a CPU.
        by_tensors: Whether the ranks only generate text with a tensor-parallel model, in which each has a part of
            every layer.
    """

    strategy: Strategy = Strategy.ddp
    sharding: Sharding = Sharding.full_shard
    cpu_offload: bool = False
    by_tensors: bool = False

    @property
    def is_sharded(self) -> bool:
        """Whether a rank has only part of the model."""
        return self.strategy is Strategy.fsdp and self.sharding is not Sharding.no_shard


class Ranks:
    """The processes of one training; a single process is the only rank of one, and communicates with nobody.

    Attributes:
        rank: Number of this process; rank 0 writes the results.
        size: Number of processes.
        device: Device of this process, for `torch.device`.
        spread: Settings by which they share a model.
        dtype: Type in which models compute; FSDP gathers sharded weights in that type.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        device: str = "cpu",
        spread: Spread | None = None,
        dtype: DType = DType.float32,
    ) -> None:
        self.rank, self.size, self.device = rank, size, device
        self.spread, self.dtype = spread or Spread(), dtype

    @property
    def is_first(self) -> bool:
        """Whether this rank writes the results."""
        return self.rank == 0

    @property
    def is_sharded(self) -> bool:
        """Whether this rank has only a part of the model."""
        return self.size > 1 and self.spread.is_sharded

    @property
    def splits_tensors(self) -> bool:
        """Whether policies are tensor-parallel over all ranks, which then do everything together."""
        return self.size > 1 and self.spread.by_tensors

    @property
    def gathers_rounded(self) -> bool:
        """Whether weights are gathered in the compute type, so that autocast is not needed.

        Autocast would keep a whole copy of the weights from the forward to the backward pass, so that sharding
        would save little.
        """
        return self.is_sharded and self.dtype is DType.bfloat16

    def say_batch(self, batch_size: int, micro_batch_size: int) -> None:
        """Log how the batch of an optimizer step is divided, if several ranks share it."""
        if self.size > 1 and self.is_first:
            own = math.ceil(batch_size / self.size)
            turns, at_once = math.ceil(own / micro_batch_size), min(micro_batch_size, own)
            parts = f"{at_once} at once x {self.size} ranks x {turns} in turn"
            print(f"batch of {batch_size}: {parts} ({self})", flush=True)  # noqa: T201 - the job's log

    @property
    def gradient_scale(self) -> float:
        """Factor for a loss before its backward pass: FSDP averages over ranks instead of summing."""
        return float(self.size) if self.is_sharded else 1.0

    def __str__(self) -> str:
        if self.size == 1:
            return "1 process"
        if self.splits_tensors:
            return f"{self.size} ranks, split by tensors"
        shared = f"fsdp {self.spread.sharding.name}" if self.is_sharded else "ddp"
        return f"{self.size} ranks, {shared}{', offloaded' if self.is_sharded and self.spread.cpu_offload else ''}"

    # -- agreeing ----------------------------------------------------------------------------------------------

    def _reduced(self, values: Tensor, by: Any) -> Tensor:
        """Reduce the numbers of all ranks to one, in place."""
        if self.size > 1:
            dist.all_reduce(values, op=by)
        return values

    def any_of(self, *flags: bool) -> tuple[bool, ...]:
        """Return for each flag whether it is true on any rank. All ranks must call this together, as all below."""
        own = torch.tensor([int(flag) for flag in flags])
        return tuple(bool(is_set) for is_set in self._reduced(own, dist.ReduceOp.MAX).tolist())

    def sum(self, value: float) -> float:
        """Return the sum over ranks."""
        return float(self._reduced(torch.tensor(value, dtype=torch.float64), dist.ReduceOp.SUM))

    def sum_array(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum over ranks, element by element."""
        summed: NDArray[np.float64] = self._reduced(torch.from_numpy(values), dist.ReduceOp.SUM).numpy()
        return summed

    def all_of(self, value: _T) -> list[_T]:
        """Return the values of all ranks, in rank order; plain data."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def least(self, value: int) -> int:
        """Return the minimum over ranks."""
        return int(self._reduced(torch.tensor(value), dist.ReduceOp.MIN))

    def all_numbers(self, values: Sequence[int]) -> list[list[int]]:
        """Return the values of all ranks, in rank order; a few whole numbers, cheap enough for every step."""
        own = torch.tensor(values)
        if self.size == 1:
            return [own.tolist()]
        gathered = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(gathered, own)
        return [numbers.tolist() for numbers in gathered]

    def made_by_first(self, make: Callable[[], _T]) -> _T:
        """Make a value on rank 0 and return it on all ranks; plain data. The others wait for it."""
        if self.size == 1:
            return make()
        made: list[Any] = [make() if self.is_first else None]
        dist.broadcast_object_list(made, src=0, device=torch.device("cpu"))
        value: _T = made[0]
        return value

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.any_of(False)

    # -- data --------------------------------------------------------------------------------------------------

    def share(
        self, rows: NDArray[np.int64], micro_batch_size: int, group: int = 1
    ) -> Iterator[tuple[NDArray[np.int64], float]]:
        """Split a batch into this rank's micro-batches, the same number on every rank.

        Args:
            rows: Rows of the whole batch, the same on every rank.
            micro_batch_size: Most rows at once; a multiple of `group`.
            group: Number of adjacent rows that stay together; divides the number of rows.

        Yields:
            Rows, and the weight of their loss: 1, or 0 if this rank has no group left while others do, and wait
            for it in the collectives of their forward pass.
        """
        groups = rows.reshape(-1, group)
        own = groups[self.rank :: self.size]
        longest, at_once = math.ceil(len(groups) / self.size), micro_batch_size // group
        for start in range(0, longest, at_once):
            part = own[start : start + at_once]
            yield (part.reshape(-1), 1.0) if len(part) else (groups[0], 0.0)

    # -- model -------------------------------------------------------------------------------------------------

    def prepare(self, model: nn.Module, dtype: torch.dtype | None = None) -> None:
        """Copy the weights of rank 0 to every rank, and shard them if the strategy says so. In place.

        Args:
            model: The same on every rank, or of the same shape.
            dtype: Type of sharded weights. None makes them float32 if some trained weights are less precise, as
                from `load_policy` with ``as_stored``, and else leaves them unchanged.
        """
        if self.size == 1:
            return
        # Ranks have usually read the same files. Writing to memory-mapped weights would copy them.
        if len(set(self.all_of(_digest(_tensors(model))))) > 1:
            with torch.no_grad():
                for tensor in _tensors(model):
                    dist.broadcast(tensor, src=0)
        if self.is_sharded:
            trained = {weight.dtype for weight in model.parameters() if weight.requires_grad}
            if dtype is None and trained - {torch.float32}:
                dtype = torch.float32
            self._shard(model, dtype)

    def _shard(self, model: nn.Module, dtype: torch.dtype | None = None) -> None:
        on_gpu = self.device.startswith("cuda")
        options: dict[str, Any] = {
            "mesh": self._mesh("cuda" if on_gpu else "cpu"),
            "reshard_after_forward": self.spread.sharding is not Sharding.shard_grad_op,
        }
        if self.spread.cpu_offload and on_gpu:
            options["offload_policy"] = CPUOffloadPolicy()
        if self.gathers_rounded:
            options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        # Block by block, so that no rank has more than one whole block, and in its own memory.
        for part in (*blocks_of(model), model):
            if dtype is not None:
                _convert(part, dtype)
            fully_shard(part, **options)

    def _mesh(self, kind: str) -> DeviceMesh:
        return init_device_mesh(kind, (self.size,))

    def add_up_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum the gradients of all ranks; FSDP has already done so in the backward pass."""
        if self.size == 1 or self.is_sharded:
            return
        # Parameters that no loss uses on any rank keep no gradient, so that the optimizer skips them as in one
        # process: all of them, if a batch has no learning signal.
        touched = self.any_of(*(weight.grad is not None for weight in parameters))
        for bucket in _buckets([weight for weight, was in zip(parameters, touched, strict=True) if was]):
            gradients = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in bucket]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(flat)
            sizes = [parameter.numel() for parameter in bucket]
            for parameter, total in zip(bucket, flat.split(sizes), strict=True):
                parameter.grad = total.view_as(parameter)

    def whole(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the model or its optimizer unsharded.

        A sharded tensor is gathered on rank 0 only, in CPU memory; other ranks get an empty tensor.
        """
        if not isinstance(tensor, DTensor):
            return tensor
        gathered: Tensor = tensor.full_tensor().detach()
        return gathered.cpu() if self.is_first else torch.empty(0)

    def gather(self, model: nn.Module) -> None:
        """Gather the model on rank 0, in CPU memory; the models of other ranks become unusable.

        Use it after training: a sharded model cannot run afterwards.
        """
        if not self.is_sharded:
            return
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        # Tied weights are one tensor under several names, and must be one again.
        whole: dict[int, nn.Parameter] = {}
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if id(parameter) not in whole:
                    whole[id(parameter)] = nn.Parameter(self.whole(parameter), parameter.requires_grad)
                setattr(module, name, whole[id(parameter)])
        for module in model.modules():
            if isinstance(module, FSDPModule):
                # `fully_shard` has put a class in front of the module's own, whose `to()` wants spread parameters.
                module.__class__ = type(module).__bases__[1]

    def part(self, tensor: Tensor, like: Tensor) -> Tensor:
        """Return this rank's part of a whole tensor, sharded like another one."""
        if not isinstance(like, DTensor) or tensor.shape != like.shape:
            return tensor
        # Every rank has read the whole tensor from the same file, so nothing is sent.
        return distribute_tensor(
            tensor.to(like.device_mesh.device_type), like.device_mesh, like.placements, src_data_rank=None
        )


ALONE = Ranks()
"""A process that trains alone."""


def save_model(model: PreTrainedModel, folder: Path, ranks: Ranks = ALONE) -> None:
    """Save a model unsharded, with any strategy. All ranks must call it; rank 0 writes."""
    ranks.gather(model)
    if ranks.is_first:
        model.cpu().save_pretrained(folder)


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _digest(tensors: Iterable[Tensor]) -> int:
    """Return a number that identifies weights: computed from the bits of each, in order.

    Weights stay on their device.
    """
    number = 0
    for tensor in (tensor for tensor in tensors if tensor.numel()):
        number = hash((number, tuple(tensor.shape), bits_of(tensor)))
    return number


@torch.no_grad()
def _convert(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert the type of weights that are not sharded yet. Tied weights stay tied."""
    for tensor in _tensors(module):
        if tensor.is_floating_point() and tensor.dtype is not dtype and not isinstance(tensor, DTensor):
            tensor.data = tensor.data.to(dtype)


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yield parameters of one type each, in groups large enough for a message."""
    for dtype in dict.fromkeys(parameter.dtype for parameter in parameters):
        bucket: list[nn.Parameter] = []
        size = 0
        for parameter in (parameter for parameter in parameters if parameter.dtype == dtype):
            bucket.append(parameter)
            size += parameter.numel() * parameter.element_size()
            if size >= _BUCKET_BYTES:
                yield bucket
                bucket, size = [], 0
        if bucket:
            yield bucket


# -- meeting -----------------------------------------------------------------------------------------------------
# Connecting and disconnecting the processes of one job.


TIMEOUT = timedelta(minutes=30)
"""Timeout of a rank that waits for the others; the engine's own limit on progress comes later."""
WHILE_SCORING = timedelta(days=7)
"""The same for ranks that generate text: they wait while the first one calls rewards, which may take long."""


@contextmanager
def join(rank: int, size: int, device: str, spread: Spread, dtype: DType = DType.float32) -> Iterator[Ranks]:
    """Connect to the other ranks given by the environment, and disconnect at the end if all went well.

    Raises:
        JobError: There are not as many of them as the job has devices.
    """
    world = os.environ.get("WORLD_SIZE")
    if world != str(size):
        raise JobError(f"the job has {size} devices, but WORLD_SIZE={world}: its processes would wait for ever")
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(torch.device(device))
    # Numbers that ranks agree on are on the CPU, so that they do not wait for pending work of the GPU.
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    timeout = WHILE_SCORING if spread.by_tensors else TIMEOUT
    options: dict[str, Any] = {"store": _meet(rank, size), "rank": rank, "world_size": size, "timeout": timeout}
    if on_gpu:
        options["device_id"] = torch.device(device)  # otherwise NCCL guesses a rank's device
    dist.init_process_group(backend, **options)
    yield Ranks(rank, size, device, spread, dtype)
    # Only if all went well: after a failure NCCL may wait for its peers for ever, before the error is reported.
    # The process group ends with the process.
    dist.destroy_process_group()


def _meet(rank: int, size: int) -> TCPStore:
    """Return the store through which ranks find each other; it listens on one address, not on every interface."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    listener = None
    if rank == 0:  # the worker that leads the ranks holds the port, which SO_REUSEADDR lets this one listen at
        listener = socket.create_server((address, port)).detach()
    return TCPStore(address, port, size, rank == 0, timeout=TIMEOUT, master_listen_fd=listener)


# -- strategy ----------------------------------------------------------------------------------------------------
# How several ranks share a model where the request leaves that open: the simplest way that should fit.
# Decided by the ranks, who have the devices, from what is free there and the model of
# `learning.memory.fit`.


def choose_spread(
    shape: ModelShape, work: Workload, size: int, *, free_bytes: int, host_bytes: int
) -> tuple[Spread, str]:
    """Choose the simplest strategy that fits on a number of equal devices.

    Args:
        shape: The model.
        work: Settings of the training.
        size: Number of devices.
        free_bytes: Free bytes of the fullest device.
        host_bytes: Free CPU memory.

    Returns:
        The strategy, and why simpler ones do not fit. If none fits, the one that needs least memory: it may still
        work, as this is an estimate and too large micro-batches are halved.
    """
    fitted = fit(shape, work, [size], lambda _: free_bytes, host_bytes=host_bytes)
    chosen = fitted.chosen or min(fitted.trials, key=lambda trial: (trial.short, trial.host_short))
    before = fitted.trials[: fitted.trials.index(chosen) + 1]
    reasons = "; ".join(f"{trial.label} {trial.verdict}" for trial in before)
    if chosen.layout is StateLayout.ddp:
        return Spread(strategy=Strategy.ddp), reasons
    sharding = Sharding[chosen.layout.name]
    return Spread(strategy=Strategy.fsdp, sharding=sharding, cpu_offload=chosen.offload), reasons


def settle(ranks: Ranks, read: Callable[[], tuple[ModelShape, Workload]] | None) -> None:
    """Choose the strategy if the request says `auto`. All ranks must call it.

    Args:
        ranks: Changed in place.
        read: Returns the model's shape and the settings of its training, called only on GPUs; None for a model
            that fits anywhere.
    """
    if ranks.spread.strategy is not Strategy.auto:
        return
    if read is None or not ranks.device.startswith("cuda"):
        ranks.spread = Spread(strategy=Strategy.ddp)
        return
    shape, work = read()
    free, _ = torch.cuda.mem_get_info(torch.device(ranks.device))
    ranks.spread, reasons = choose_spread(
        shape,
        work,
        ranks.size,
        free_bytes=ranks.least(free),
        host_bytes=ranks.least(memory_available_bytes()),
    )
    if ranks.is_first:
        print(f"training.strategy=auto: {ranks}. {reasons}", flush=True)  # noqa: T201 - the job's log


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the layers that a model's authors mark as blocks, and that have weights of their own.

    Of nested blocks only the outermost is returned.
    """
    names = {
        name
        for part in model.modules()
        if isinstance(part, PreTrainedModel)
        for name in part._no_split_modules or ()
    }
    marked = [part for part in model.modules() if type(part).__name__ in names]
    inner = {id(part) for block in marked for part in block.modules() if part is not block}
    outer = [block for block in marked if id(block) not in inner]
    owners = Counter(id(weight) for block in outer for weight in block.parameters())
    return [block for block in outer if all(owners[id(weight)] == 1 for weight in block.parameters())]


# -- bits --------------------------------------------------------------------------------------------------------
# Hash of a tensor's bits, by which ranks check that their tensors are equal.


_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
"""Bytes of a number -> integer type of the same size, or of half the size."""
_AT_ONCE = 1 << 22
"""Numbers to add up at once, as the sum makes a copy with 8 bytes for each."""


def bits_of(tensor: Tensor) -> int:
    """Return a number that changes with any bit of a tensor: the sum of its bits, read as integers."""
    bits = tensor.detach().contiguous().flatten().view(_WHOLE[tensor.itemsize])
    # One synchronisation with the device: partial sums are added there.
    return int(torch.stack([part.sum(dtype=torch.int64) for part in bits.split(_AT_ONCE)]).sum())
