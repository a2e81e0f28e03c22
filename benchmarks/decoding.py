"""Tokens per second of decoding at mixed and at equal lengths: in slots, in batches, and by transformers.

    OMP_NUM_THREADS=1 python -m benchmarks.decoding                       # tiny GPT-2
    OMP_NUM_THREADS=1 python -m benchmarks.decoding --model 135m --count 64 --slots 16 --repeats 1

Models have random weights, and a hash of the sample says by a geometric law where its completion ends, so every
way decodes the same lengths. Ways take turns; the quickest turn of each counts, in CPU seconds unless
`--clock wall`. Batches are those in which models are decoded that cannot be read in slots. What slots should win
is predicted from what a step costs by itself and for each row, measured at equal lengths with few rows and with
many, and from the rows of every forward pass of both ways.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from benchmarks.arguments import positive
from pipeline.learning.choices import HeadType
from pipeline.learning.generation import row_models
from pipeline.learning.generation.decode import DecodeSettings, Guidance, SlotPace, decode
from pipeline.learning.generation.row_models import padded
from pipeline.learning.generation.sampling import Tilt, preference_offset, sample_keys, uniforms
from pipeline.learning.models.load import frozen
from pipeline.learning.models.value import value_model_from

_IDS = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}


def _llama(vocabulary: int, width: int, layers: int, heads: int, groups: int, **more: Any) -> PreTrainedModel:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=width * 8 // 3,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=groups,
            **more,
            **_IDS,  # type: ignore[arg-type]
        )
    )


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "tiny": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=13, n_positions=512, n_embd=48, n_layer=2, n_head=4, **_IDS)  # type: ignore[arg-type]
    ),
    "llama": lambda: _llama(1009, 64, 2, 4, 2),
    "16m": lambda: _llama(4096, 384, 8, 6, 2),
    "135m": lambda: _llama(49152, 576, 30, 9, 3, tie_word_embeddings=True),
}


@dataclass
class Load:
    """Prompts and where their completions end."""

    prompts: list[list[int]]
    budgets: NDArray[np.int64]

    @property
    def tokens(self) -> int:
        """New ones in all."""
        return int(self.budgets.sum())


def mixed(count: int, shortest: int, longest: int, mean: int, most: int) -> Load:
    """Prompts of all lengths, completions of a geometric law."""
    numbers = np.random.default_rng(0)
    lengths = numbers.integers(shortest, longest + 1, count)
    draws = uniforms(sample_keys(0, "lengths", np.arange(count), 1)[:, 0], 1)[:, 0]
    budgets = np.minimum(1 + np.floor(np.log(draws) / np.log(1 - 1 / mean)), most).astype(np.int64)
    return Load([numbers.integers(1, 13, length).tolist() for length in lengths], budgets)


def equal(count: int, length: int, new: int) -> Load:
    """Prompts of one length, completions too."""
    prompts = np.random.default_rng(0).integers(1, 13, (count, length)).tolist()
    return Load(prompts, np.full(count, new))


class Ways:
    """What is compared, on one model."""

    def __init__(self, model: PreTrainedModel, head: HeadType | None, device: str, pace: SlotPace) -> None:
        self.model, self.device, self.pace = model, device, pace
        self.value = None if head is None else frozen(value_model_from(model, head), device)
        self.tilt = Tilt(preference_offset(1.0), top_k=6, min_p=0.02)

    def batches(self, load: Load, slots: int) -> None:
        """Rows that begin together, as models have them that cannot read others."""
        known = row_models.reads_rows
        row_models.reads_rows = lambda model: False  # noqa: ARG005 - as it is called
        try:
            self.slots(load, slots)
        finally:
            row_models.reads_rows = known

    def slots(self, load: Load, slots: int) -> None:
        """Slots that are filled again."""
        decode(
            self.model,
            load.prompts,
            load.budgets,
            self._settings(slots),
            keys=self._keys(load),
            guidance=None if self.value is None else Guidance(self.value, self.tilt),
            pace=self.pace,
        )

    @torch.inference_mode()
    def generate(self, load: Load, slots: int) -> None:
        """Batches of transformers: rows that are finished are computed on until the last one is."""
        order = np.argsort([len(prompt) for prompt in load.prompts], kind="stable")
        for chosen in np.split(order, range(slots, len(order), slots)):
            batch = padded([load.prompts[row] for row in chosen], 0, self.device, "left")
            self.model.generate(  # type: ignore[operator]
                batch.ids,
                attention_mask=torch.ones_like(batch.ids) if batch.mask is None else batch.mask,
                max_new_tokens=int(load.budgets[chosen].max()),
                do_sample=True,
                top_k=0,
                pad_token_id=0,
            )

    def _settings(self, slots: int) -> DecodeSettings:
        return DecodeSettings(batch_size=slots, device=self.device)

    @staticmethod
    def _keys(load: Load) -> NDArray[np.uint64]:
        return sample_keys(0, "benchmark", np.arange(len(load.prompts)), 1)


Way = Callable[[Load, int], None]


def timed(
    ways: dict[str, Way], load: Load, slots: int, repeats: int, args: argparse.Namespace
) -> dict[str, float]:
    """Seconds of every way, taking turns; the first turn warms up where there are several."""
    clock = time.perf_counter if args.clock == "wall" else time.process_time
    best = dict.fromkeys(ways, float("inf"))
    for repeat in range(repeats):
        for name, way in ways.items():
            begin = clock()
            way(load, slots)
            if args.device == "cuda":
                torch.cuda.synchronize()
            if repeat or repeats == 1:
                best[name] = min(best[name], clock() - begin)
    return best


def watched(model: PreTrainedModel, way: Way, load: Load, slots: int) -> tuple[list[int], list[int]]:
    """Rows of every step, and tokens of every pass over prompts."""
    steps: list[int] = []
    prompts: list[int] = []

    def see(_module: object, _args: object, kwargs: dict[str, torch.Tensor]) -> None:
        ids = kwargs["input_ids"]
        (prompts if ids.shape[1] > 1 else steps).append(ids.numel())

    handle = model.register_forward_pre_hook(see, with_kwargs=True)
    way(load, slots)
    handle.remove()
    return steps, prompts


def cost_of_steps(way: Way, slots: int, length: int, args: argparse.Namespace) -> tuple[float, float]:
    """Seconds of a step by itself, and for each of its rows."""
    few, long, short = max(1, slots // 8), 48, 16

    def step(rows: int) -> float:
        seconds = [
            timed({"way": way}, equal(rows, length, new), rows, args.repeats, args)["way"] for new in (short, long)
        ]
        return (seconds[1] - seconds[0]) / (long - short)

    less, more = step(few), step(slots)
    each = (more - less) / (slots - few)
    return max(0.0, less - few * each), each


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = frozen(MODELS[args.model](), args.device)
    ways = Ways(model, None if args.head is None else HeadType[args.head], args.device, _pace(args))
    compared: dict[str, Way] = {"batches": ways.batches, "slots": ways.slots}
    if args.head is None:
        compared |= {"generate": ways.generate}
    compared = {name: way for name, way in compared.items() if name not in args.without}
    title = f"{args.model}, {args.head or 'plain'}, {args.device}, {args.count} prompts, {args.clock} seconds"
    ratios = ("slots / batches", "predicted", "slots / generate")
    table = Table("lengths", "slots", "batches", "slots", *ratios, title=title)
    for slots in args.slots:
        load = mixed(args.count, 16, 128, args.mean, args.most)
        fixed, each = cost_of_steps(ways.batches, slots, 72 + args.mean // 2, args)
        predicted = _predicted(model, ways, load, slots, fixed, each)
        _row(table, "mixed", slots, timed(compared, load, slots, args.repeats, args), load, predicted)
        same = equal(min(args.count, 2 * slots), 72, args.mean)
        _row(table, "equal", slots, timed(compared, same, slots, args.repeats, args), same, "")
        print(f"{slots} slots: a step is {1e3 * fixed:.2f} ms and {1e3 * each:.3f} ms for each row")
    Console(width=140).print(table)


def _predicted(model: PreTrainedModel, ways: Ways, load: Load, slots: int, fixed: float, each: float) -> str:
    costs = []
    for way in (ways.batches, ways.slots):
        steps, prompts = watched(model, way, load, slots)
        # A token of a prompt costs about what a row of a step does, less its attention.
        costs.append((len(steps) + len(prompts)) * fixed + (sum(steps) + sum(prompts)) * each)
        full = sum(steps) / len(steps) / slots
        print(f"{slots} slots, {way.__name__}: {len(steps)} steps, {full:.0%} full, {len(prompts)} prefills")
    return f"{costs[0] / costs[1]:.2f}"


def _row(table: Table, name: str, slots: int, seconds: dict[str, float], load: Load, predicted: str) -> None:
    speed = {way: load.tokens / each for way, each in seconds.items()}
    other = f"{speed['slots'] / speed['generate']:.2f}" if "generate" in speed else ""
    ratio = f"{speed['slots'] / speed['batches']:.2f}"
    table.add_row(
        name, str(slots), f"{speed['batches']:,.0f}/s", f"{speed['slots']:,.0f}/s", ratio, predicted, other
    )


def _pace(args: argparse.Namespace) -> SlotPace:
    given = {name: getattr(args, name) for name in ("prefill", "entry") if getattr(args, name) is not None}
    return replace(SlotPace(), **given)


def _arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--model", choices=list(MODELS), default="tiny")
    parser.add_argument("--head", choices=[head.name for head in HeadType], help="guided by a head, not plain")
    parser.add_argument("--slots", type=positive, nargs="+", default=[16, 64])
    parser.add_argument("--count", type=positive, default=512, help="prompts of mixed lengths")
    parser.add_argument("--mean", type=positive, default=64, help="tokens of a completion")
    parser.add_argument("--most", type=positive, default=256, help="tokens of the longest completion")
    parser.add_argument("--without", nargs="*", choices=["generate"], default=[])
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--clock", choices=["cpu", "wall"], default="cpu")
    parser.add_argument("--prefill", type=float, help="see Pace")
    parser.add_argument("--entry", type=float, help="see Pace")
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
