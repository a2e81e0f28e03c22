"""Experiments of `benchmarks.gpu` on trainings: the optimizer's memory, speed, repeatability, what fits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from transformers import PreTrainedModel

from benchmarks.gpu_measures import Bench, Experiment, Figure
from pipeline.config.schema import DType, Strategy, TrainingConfig
from pipeline.errors import OutOfMemory
from pipeline.learning.training.distributed import Ranks, Spread
from pipeline.learning.training.loop import Fitting, computing_in, fit_sft
from pipeline.learning.training.sequences import Sequences

ROWS = 32


def fitted(bench: Bench, model: PreTrainedModel, *, steps: int, micro_batch: int, length: int) -> list[float]:
    """Imitate texts of about a length, `ROWS` a step, in bfloat16."""
    rows = bench.of(ROWS, 8)
    texts = bench.texts(rows, length)
    data = Sequences.of(texts, [length // 4] * rows, [1.0] * rows)
    training = TrainingConfig(micro_batch_size=micro_batch, warmup_steps=1)
    how = Fitting(
        batch_size=rows, epochs=steps, learning_rate=1e-5, training=training, seed=0, device=bench.device,
        dtype=DType.bfloat16,
    )  # fmt: skip
    return fit_sft(model, data, how)


def optimizer(bench: Bench) -> list[Figure]:
    """What a step of AdamW takes beside weights, gradients and moments."""
    count, found = bench.of(10**9, 10**4), []
    for name, predicted in (("foreach", 20.0), ("fused", 16.0)):
        bench.fresh()
        weights = [nn.Parameter(torch.zeros(count // 50, device=bench.device)) for _ in range(50)]
        adam = torch.optim.AdamW(weights, lr=1e-4, foreach=name == "foreach", fused=name == "fused")
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        ms, peak = bench.ms(adam.step, 5), bench.peak()
        each = None if peak is None else peak / count
        found += [Figure(f"{name}: memory", each, "bytes a parameter", predicted - 0.5, predicted + 0.5)]
        found += [Figure(f"{name}: step", ms, "ms")]
        del weights, adam, weight
    return found


def training(bench: Bench) -> list[Figure]:
    """Tokens per second and memory of a 1B policy."""
    length, found = bench.of(600, 16), []
    for micro_batch in (4,) if bench.tiny else (4, 8, 16):
        bench.fresh()
        model, steps = bench.trained("1b"), bench.of(4, 2)
        again = partial(fitted, bench, model, micro_batch=micro_batch, length=length)
        again(steps=1)
        with bench.determinism(True):
            seconds = bench.seconds(partial(again, steps=steps))
        peak = bench.peak()
        found.append(
            Figure(f"micro-batch {micro_batch}", bench.of(ROWS, 8) * length * steps / seconds, "tokens/s")
        )
        found.append(Figure(f"micro-batch {micro_batch}: memory", peak and peak / 2**30, "GiB"))
        del model, again
    return found


def repeatable(bench: Bench) -> list[Figure]:
    """Whether two trainings of the same end in the same bytes, held to deterministic kernels and only warned."""
    found = []
    for name, warn_only, predicted in (("deterministic kernels alone", False, 1), ("with a warning", True, 0)):
        digests = set()
        with bench.determinism(True, warn_only=warn_only):
            for _ in range(2):
                model = bench.trained("135m")
                fitted(bench, model, steps=bench.of(5, 2), micro_batch=8, length=bench.of(400, 16))
                digests.add(_digest(model))
                del model
        found.append(Figure(f"{name}: the same bytes", len(digests) == 1, "", predicted, predicted))
    return found


def _digest(model: nn.Module) -> str:
    whole = hashlib.sha256()
    for weight in list(model.parameters())[:8]:
        whole.update(weight.detach().float().cpu().numpy().tobytes())
    return whole.hexdigest()


def whole_8b(bench: Bench) -> list[Figure]:
    """Whether all of an 8B policy can be trained."""
    try:
        model = bench.trained("8b")
        fitted(
            bench, model, steps=2, micro_batch=1, length=bench.of(512, 16)
        )  # the second has moments beside all else
        fits = True
    except (torch.OutOfMemoryError, OutOfMemory):
        fits = False
    return [Figure("fits", fits, "", 0, 1)]


class _One(Ranks):
    """A rank of several that has no others."""

    def _mesh(self, kind: str) -> DeviceMesh:
        return init_device_mesh(kind, (1,))


@contextmanager
def _alone(bench: Bench) -> Iterator[None]:
    if bench.on_gpu:
        torch.cuda.set_device(0)
    backend = "cpu:gloo,cuda:nccl" if bench.on_gpu else "gloo"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def spread(bench: Bench) -> list[Figure]:
    """Bytes of a spread model that are alive after a forward pass."""
    with _alone(bench):
        return [Figure("gathered in bfloat16", _alive(bench), "bytes a parameter", 0, 0.2)]


def _alive(bench: Bench) -> float | None:
    model = bench.trained("1b").train()
    parameters = sum(weight.numel() for weight in model.parameters())
    ranks = _One(0, 2, bench.device, Spread(strategy=Strategy.fsdp), DType.bfloat16)
    ranks._shard(model)
    taken, ids = bench.taken(), torch.ones(1, 64, dtype=torch.long, device=bench.device)
    with computing_in(DType.bfloat16, bench.device, ranks):
        loss = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits.float().sum()
    now = bench.taken()
    loss.backward()
    return None if now is None or taken is None else (now - taken) / parameters


TRAINING: dict[str, Experiment] = {
    "optimizer": optimizer,
    "training": training,
    "repeatable": repeatable,
    "whole_8b": whole_8b,
    "spread": spread,
}
