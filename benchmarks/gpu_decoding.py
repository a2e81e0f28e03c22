"""Experiments of `benchmarks.gpu` on forward passes: single kernels, attention, decoding."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from functools import partial

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile
from transformers import PreTrainedModel

from benchmarks.gpu_measures import Bench, Experiment, Figure
from pipeline.learning.generation.decode import Decoded, DecodeSettings, Guidance, decode
from pipeline.learning.generation.row_models import guide_of
from pipeline.learning.generation.sampling import (
    Tilt,
    bernoulli_offset,
    cut,
    draw_tokens,
    find_candidates,
    policy_logprobs,
    sample_keys,
    split_draw,
)
from pipeline.learning.generation.steps import tell
from pipeline.learning.models.value import ValueModel
from pipeline.outputs.formats import Sampling

TILT = Tilt(bernoulli_offset(0.1), top_k=20)


def drawn(
    bench: Bench,
    policy: PreTrainedModel,
    guide: ValueModel | None,
    batch: int,
    steps: int,
    *,
    total: int | None = None,
    length: int = 256,
    top_p: float = 1.0,
    graphs: bool = False,
) -> Decoded:
    """Complete prompts, guided where there is a guide."""
    count = total or batch
    return decode(
        policy,
        bench.texts(count, bench.of(length, 12)),
        [steps] * count,
        DecodeSettings(batch_size=batch, sampling=Sampling(top_p=top_p), device=bench.device, cuda_graphs=graphs),
        keys=sample_keys(0, "gpu", np.arange(count), 1),
        guidance=None if guide is None else Guidance(guide, TILT),
    )


def step_ms(
    bench: Bench,
    policy: PreTrainedModel,
    guide: ValueModel | None,
    batch: int,
    top_p: float = 1.0,
    *,
    graphs: bool = False,
) -> float:
    """Of one more decoding step: the prefill is in both of two runs."""
    few, many = bench.of(8, 2), bench.of(40, 6)
    run = partial(drawn, bench, policy, guide, batch, top_p=top_p, graphs=graphs)
    run(4)
    return (bench.seconds(lambda: run(many)) - bench.seconds(lambda: run(few))) / (many - few) * 1e3


def arithmetic(bench: Bench) -> list[Figure]:
    """What the card does at its best."""
    size = bench.of(8192, 64)
    square = torch.randn(size, size, device=bench.device, dtype=torch.bfloat16)
    return [
        Figure("bfloat16 products", 2 * size**3 / bench.ms(lambda: square @ square) / 1e9, "TFLOP/s", 500, 900)
    ]


def kernels(bench: Bench) -> list[Figure]:
    """What deterministic mode, and filling of empty memory, add to the operations of a step."""
    rows, slots = bench.of(64, 4), bench.of(1024, 64)
    logits = torch.randn(rows, bench.vocabulary, device=bench.device, dtype=torch.bfloat16) * 3
    uniform = torch.rand(rows, device=bench.device, dtype=torch.float64)
    logprobs = policy_logprobs(logits)
    shape = rows, 8, slots, bench.of(128, 8)
    found = {}
    for name, mode, fill in (("as it was", True, True), ("now", False, False)):
        with bench.determinism(mode, warn_only=True, fill=fill):
            found[name] = (
                bench.ms(lambda: cut(policy_logprobs(logits), Sampling(top_p=0.95)), 5),
                bench.ms(lambda: torch.empty(shape, device=bench.device, dtype=torch.bfloat16), 5),
            )
    candidates = find_candidates(logprobs, TILT)
    return [
        Figure("log-softmax", bench.ms(lambda: policy_logprobs(logits)), "ms"),
        Figure("drawing", bench.ms(lambda: draw_tokens(logprobs, uniform)), "ms"),
        Figure(
            "drawing beside candidates", bench.ms(lambda: split_draw(logprobs, candidates, uniform, TILT)), "ms"
        ),
        Figure("nucleus, deterministic / not", found["as it was"][0] / found["now"][0], "x", 2, 10),
        Figure("buffer of a cache, filled / not", found["as it was"][1] / found["now"][1], "x"),
    ]


def attention(bench: Bench) -> list[Figure]:
    """Whether a length that is new costs more than one that was seen, as each decoding step has.

    As a step of decoding asks: queries by heads of keys, and what is hidden of each row is added to scores.
    """
    rows, heads, groups, size = bench.of(64, 2), bench.of(32, 4), bench.of(8, 2), bench.of(128, 64)
    query = torch.randn(rows, groups, heads // groups, size, device=bench.device, dtype=torch.bfloat16)
    keys = torch.randn(rows, groups, 1216, size, device=bench.device, dtype=torch.bfloat16)
    hidden = torch.zeros(rows, 1, 1, 1216, device=bench.device, dtype=torch.bfloat16)
    hidden[::2, ..., 500:].fill_(-math.inf)

    def of_length(length: int) -> None:
        part = keys[:, :, :length]
        scaled_dot_product_attention(query, part, part, attn_mask=hidden[..., :length])

    expected = {"CUDNN_ATTENTION": (1.5, 1000.0), "EFFICIENT_ATTENTION": (0.7, 1.5)}
    found = []
    for name, (low, high) in expected.items():
        try:
            with sdpa_kernel(getattr(SDPBackend, name)):
                new = statistics.median([bench.seconds(partial(of_length, at)) for at in range(600, 620)][3:])
                seen = bench.ms(partial(of_length, 619))
        except RuntimeError as error:
            found.append(Figure(f"{name}: new length / seen", str(error).splitlines()[0][:80]))
            continue
        found.append(Figure(f"{name}: new length / seen", new * 1e3 / seen, "x", low, high))
        found.append(Figure(f"{name}: a layer of {rows} rows", seen, "ms"))
    return found


def decoding(bench: Bench) -> list[Figure]:
    """Tokens per second of an 8B policy, by itself and with a 1B guide."""
    policy, guide, found = bench.policy("8b"), bench.value("1b"), []
    predicted = {64: ((8, 12), (16, 24)), 128: ((None, None), (None, None)), 256: ((None, None), (None, None))}
    for rows, of in {bench.of(rows, 4): of for rows, of in predicted.items()}.items():
        for name, model, (low, high) in (("plain", None, of[0]), ("guided", guide, of[1])):
            bench.fresh()
            ms = step_ms(bench, policy, model, rows, graphs=True)
            found.append(Figure(f"{name}, {rows} rows: step", ms, "ms", low, high))
            found.append(Figure(f"{name}, {rows} rows", rows / ms * 1e3, "tokens/s"))
    rows = bench.of(64, 4)
    found.append(
        Figure(f"nucleus, {rows} rows: step", step_ms(bench, policy, None, rows, 0.95, graphs=True), "ms")
    )
    return found


def launches(bench: Bench) -> list[Figure]:
    """How busy the host keeps the GPU in a guided step."""
    policy, guide, rows, steps = bench.policy("8b"), bench.value("1b"), bench.of(64, 4), bench.of(8, 2)
    drawn(bench, policy, guide, rows, steps)
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if bench.on_gpu else [])
    with profile(activities=kinds) as seen:
        seconds = bench.seconds(lambda: drawn(bench, policy, guide, rows, steps))
    counts = Counter(event.name for event in seen.events() or ())
    busy = sum(event.self_device_time_total for event in seen.key_averages()) / 1e6 if bench.on_gpu else None
    waits = sum(count for name, count in counts.items() if "Synchronize" in name)
    return [
        Figure("kernels launched a step", counts["cudaLaunchKernel"] / steps, "", 1900, 2700),
        Figure("waits for the GPU a step", waits / steps, "", 1, 2),
        Figure("share of time in which the GPU works", None if busy is None else busy / seconds, "", 0.1, 0.5),
    ]


def same(bench: Bench) -> list[Figure]:
    """Whether the same draws give the same tokens: again, and in other batches."""
    policy, guide, total = bench.policy("1b"), bench.value("135m"), bench.of(64, 8)
    steps = bench.of(64, 8)

    def tokens(rows: int) -> list[list[int]]:
        return drawn(bench, policy, guide, rows, steps, total=total, length=34).tokens

    def share(one: list[list[int]], other: list[list[int]]) -> float:
        return float(
            np.mean([a == b for row, its in zip(one, other, strict=True) for a, b in zip(row, its, strict=False)])
        )

    first = tokens(total)
    return [
        Figure("tokens that are equal when it is run again", share(first, tokens(total)), "", 1, 1),
        Figure("in batches of a quarter", share(first, tokens(total // 4)), "", 0.6, 1),
    ]


def values(bench: Bench) -> list[Figure]:
    """Values of candidates in bfloat16 beside the same weights in float32."""
    exact, rounded = bench.value("1b", torch.float32), bench.value("1b")
    rounded.load_state_dict(exact.state_dict())
    prompts, found = bench.texts(8, 40), []
    with torch.inference_mode():
        for model in (exact, rounded):
            guide = guide_of(model, slots=8, width=64, pad_id=0)
            guide.stage(prompts)
            guide.enter(torch.arange(8, device=bench.device), np.array([len(prompt) for prompt in prompts]))
            numbers, told = np.random.default_rng(0), []
            for _ in range(4):
                chosen = torch.from_numpy(numbers.integers(1, bench.vocabulary, (8, 20))).to(bench.device)
                told.append(guide.values(chosen, torch.ones_like(chosen, dtype=torch.bool)))
                guide.advance(chosen[:, 0], torch.zeros(8, dtype=torch.long, device=bench.device))
            found.append(torch.stack(told).float())
    off = (found[0] - found[1]).abs().mean() / found[0].std()
    return [
        Figure("all are numbers", bool(found[1].isfinite().all()), "", 1, 1),
        Figure("error, in deviations", float(off), "", 0, 0.1),
    ]


def held(bench: Bench) -> list[Figure]:
    """What a guide keeps of the device when decoding is over."""
    policy, guide, rows = bench.policy("1b"), bench.value("1b"), bench.of(128, 4)
    bench.fresh()
    before, guidance = bench.taken(), Guidance(guide, TILT)
    settings = DecodeSettings(batch_size=rows, device=bench.device)
    prompts = bench.texts(rows, bench.of(512, 8), uneven=False)
    decode(policy, prompts, [8] * rows, settings, keys=sample_keys(0, "x", np.arange(rows), 1), guidance=guidance)
    after = bench.taken()
    left = None if before is None or after is None else (after - before) / 2**30
    return [Figure("kept after decoding", left, "GiB", 0, 0.5)]


def recorded(bench: Bench) -> list[Figure]:
    """Steps as they are, and as graphs (`generation.cuda_graphs`): how long they take, and what they draw."""
    policy, guide, rows, found = bench.policy("8b"), bench.value("1b"), bench.of(64, 4), []
    for name, model, low, high in (("plain", None, 8, 12), ("guided", guide, 16, 24)):
        for graphs in (False, True):
            bench.fresh()
            ms = step_ms(bench, policy, model, rows, graphs=graphs)
            predicted = (low, high) if graphs else (None, None)
            found.append(Figure(f"{name}: step, {'a graph' if graphs else 'as it is'}", ms, "ms", *predicted))
        one, other = (drawn(bench, policy, model, rows, bench.of(40, 6), graphs=on).tokens for on in (False, True))
        equal = np.mean([a == b for its, of in zip(one, other, strict=True) for a, b in zip(its, of, strict=True)])
        found.append(Figure(f"{name}: tokens that are equal", float(equal), "", 0.6, 1))
    # What cannot be recorded is told of once, and then decoded without.
    could = tell.cache_info().currsize == 0 if bench.on_gpu else None
    return [*found, Figure("steps could be recorded", could, "", 1, 1)]


DECODING: dict[str, Experiment] = {
    "arithmetic": arithmetic,
    "kernels": kernels,
    "attention": attention,
    "decoding": decoding,
    "launches": launches,
    "same": same,
    "values": values,
    "held": held,
    "recorded": recorded,
}
