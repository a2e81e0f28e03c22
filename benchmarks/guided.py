"""What guidance costs beside plain decoding, and beside what arithmetic allows: 1 + r c.

    OMP_NUM_THREADS=1 python -m benchmarks.guided
    OMP_NUM_THREADS=1 python -m benchmarks.guided --model 30m --new-tokens 32 --repeats 5
    OMP_NUM_THREADS=1 python -m benchmarks.guided --model 30m --value 7m --new-tokens 32 --repeats 5
    OMP_NUM_THREADS=1 python -m benchmarks.guided --folder FOLDER   # of a trained reference of the task

r is what a token costs in the value model, in FLOPs, as a multiple of what it costs in the reference; c is
how many tokens the value model reads for each one that is written: the candidates of head "v", the token
itself with head "q". The bound is 1 + FLOPs of guidance / FLOPs of the reference, prompts included, as the
pipeline counts them.

Models have random weights, sharpened until steps have few candidates. Plain and guided decoding take turns in
one process, and the ratio is the median of the ratios within a turn, in CPU seconds: what else runs on the
machine slows both alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import Cache, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from benchmarks.arguments import positive
from benchmarks.decoding import MODELS, Load, equal, mixed
from pipeline.config.schema import SystemConfig
from pipeline.learning.choices import HeadType, Others
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.datasets.shipped import AdditionConfig
from pipeline.learning.generation.decode import DecodeSettings, Guidance, decode
from pipeline.learning.generation.row_models import RowModel
from pipeline.learning.generation.sampling import Tilt, preference_offset, sample_keys
from pipeline.learning.generation.steps import Taken, Taking
from pipeline.learning.models.flops import metered
from pipeline.learning.models.load import frozen, load_policy, load_tokenizer
from pipeline.learning.models.value import ValueModel, value_model_from


def _llama(width: int, layers: int) -> PreTrainedModel:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=8192,
            hidden_size=width,
            intermediate_size=width * 11 // 4,
            num_hidden_layers=layers,
            num_attention_heads=width // 64,
            num_key_value_heads=width // 128,
            bos_token_id=0,
            eos_token_id=None,
            pad_token_id=0,
        )
    )


SIZES: dict[str, Callable[[], PreTrainedModel]] = {
    "tiny": MODELS["tiny"],
    "30m": lambda: _llama(512, 8),
    "7m": lambda: _llama(256, 6),
}
SHARPNESS = {"tiny": 8.0, "30m": 28.0, "7m": 28.0}
"""Factor on the last norm of a random model, by which some 2 tokens of a step have 2 % of the probability each."""


@dataclass(frozen=True)
class Cost:
    """What was measured with one head and number of slots.

    Attributes:
        ratio: CPU seconds of guided decoding by those of plain decoding, the median of all turns.
        spread: The quartiles of it.
        read: Tokens that the value model has read for each one that was written, c.
        passes: Of the value model after prompts, by those of the reference.
        size: FLOPs of a token in the value model by those in the reference, r.
        bound: What the FLOPs allow.
    """

    ratio: float
    spread: tuple[float, float]
    read: float
    passes: float
    size: float
    bound: float


class Decoding:
    """A reference, and a value model of each head."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.device: str = args.device
        self.model = _model(args)
        # Of the same size it is a copy, as where nothing else is asked for.
        backbone = SIZES[args.value]() if args.value else self.model
        self.values = {head: frozen(value_model_from(backbone, HeadType[head]), self.device) for head in args.head}
        self.model = frozen(self.model, self.device)
        self.tilt = Tilt(preference_offset(1.0), top_k=args.top_k, min_p=args.min_p, others=Others[args.others])

    def run(self, load: Load, slots: int, value: ValueModel | None) -> float:
        """CPU seconds of a load; those of a GPU's clock are wall seconds."""
        begin = self._now()
        decode(
            self.model,
            load.prompts,
            load.budgets,
            DecodeSettings(batch_size=slots, device=self.device),
            keys=sample_keys(0, "benchmark", load.budgets * 0 + range(len(load.budgets)), 1),
            guidance=None if value is None else Guidance(value, self.tilt),
        )
        return self._now() - begin

    def measure(self, load: Load, slots: int, repeats: int) -> dict[str, Cost]:
        """The cost of every head."""
        counted = {head: self._count(load, slots, value) for head, value in self.values.items()}
        seconds: dict[str, list[float]] = {head: [] for head in ("plain", *self.values)}
        for _ in range(repeats):
            seconds["plain"].append(self.run(load, slots, None))
            for head, value in self.values.items():
                seconds[head].append(self.run(load, slots, value))
        return {head: _cost(seconds[head], seconds["plain"], *counted[head]) for head in self.values}

    def _count(self, load: Load, slots: int, value: ValueModel) -> tuple[float, float, float, float]:
        """c, passes, r and the bound; warms up meanwhile."""
        read, steps = Counter[str](), Counter[str]()
        handles = [
            model.register_forward_pre_hook(_counting(read, steps, name), with_kwargs=True)
            for name, model in (("policy", self.model), ("guide", value))
        ]
        with metered() as meter:
            self.run(load, slots, value)
        for handle in handles:
            handle.remove()
        self.run(load, slots, None)
        prompts = sum(map(len, load.prompts))
        each = {
            "policy": meter.flops["decoding"] / read["policy"],
            "guide": meter.flops["guidance"] / read["guide"],
        }
        c = (read["guide"] - prompts) / load.tokens
        return (
            c,
            steps["guide"] / steps["policy"],
            each["guide"] / each["policy"],
            1 + meter.flops["guidance"] / meter.flops["decoding"],
        )

    def beside_models(self, load: Load, slots: int, value: ValueModel | None) -> tuple[float, float, float]:
        """CPU milliseconds (median) in which a token is taken from what models computed, and of a pass over one.

        Args:
            load: What to decode.
            slots: Rows at once.
            value: With a head "q", whose values are looked up there; None decodes plainly.

        Returns:
            Both, and the milliseconds of a step in all (mean).
        """
        taking: list[float] = []
        reading: list[float] = []
        take, read = Taking.__call__, RowModel.read

        def timed_take(self: Taking, logits: Tensor, draws: Tensor | None) -> Taken:
            begin = time.process_time()
            taken = take(self, logits, draws)
            taking.append(time.process_time() - begin)
            return taken

        def timed_read(self: RowModel, tokens: Tensor) -> Tensor:
            begin = time.process_time()
            outputs = read(self, tokens)
            reading.append(time.process_time() - begin)
            return outputs

        Taking.__call__, RowModel.read = timed_take, timed_read  # type: ignore[method-assign]
        try:
            seconds = self.run(load, slots, value)
        finally:
            Taking.__call__, RowModel.read = take, read  # type: ignore[method-assign]
        return 1e3 * statistics.median(taking), 1e3 * statistics.median(reading), 1e3 * seconds / len(taking)

    def _now(self) -> float:
        if self.device == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()


def _counting(
    read: Counter[str], steps: Counter[str], name: str
) -> Callable[[object, tuple[Tensor, ...], dict[str, Any]], None]:
    def see(_module: object, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
        read[name] += (args[0] if args else kwargs["input_ids"]).numel()
        cache = next(value for value in kwargs.values() if isinstance(value, Cache))
        steps[name] += cache.get_seq_length() > 0

    return see


def _model(args: argparse.Namespace) -> PreTrainedModel:
    if args.folder is None:
        return _sharpened(SIZES[args.model](), SHARPNESS[args.model])
    return load_policy(args.folder, SystemConfig(), args.device)


def _load(args: argparse.Namespace, slots: int) -> Load:
    if args.folder is not None:
        dataset = load_dataset(AdditionConfig(kind="addition"))
        rows = [dataset.row(int(row)) for row in dataset.ids("validation")[: 4 * slots]]
        prompts = load_tokenizer(args.folder)([row.prompt for row in rows])["input_ids"]
        assert dataset.completion_length is not None
        return Load([list(ids) for ids in prompts], np.full(len(rows), dataset.completion_length))
    if args.lengths == "equal":
        return equal(slots, args.prompt, args.new_tokens)
    return mixed(4 * slots, args.prompt // 2, args.prompt * 2, args.new_tokens, 4 * args.new_tokens)


def _sharpened(model: Any, by: float) -> PreTrainedModel:
    norm = model.transformer.ln_f if hasattr(model, "transformer") else model.model.norm
    norm.weight.data *= by
    sharpened: PreTrainedModel = model
    return sharpened


def _cost(guided: Sequence[float], plain: Sequence[float], *counted: float) -> Cost:
    ratios = sorted(one / other for one, other in zip(guided, plain, strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return Cost(middle, (low, high), *counted)


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    decoding = Decoding(args)
    title = "a trained reference of the addition task"
    if args.folder is None:
        title = f"{args.model} by {args.value or args.model}, {args.lengths} lengths, {args.new_tokens} new tokens"
    table = Table(
        "slots", "head", "r", "c", "passes", "bound", "guided / plain", "quartiles", "/ bound", title=title
    )
    for slots in args.slots:
        load = _load(args, slots)
        for head, cost in decoding.measure(load, slots, args.repeats).items():
            figures = (cost.size, cost.read, cost.passes, cost.bound, cost.ratio)
            low, high = cost.spread
            table.add_row(
                str(slots),
                head.upper(),
                *(f"{figure:.2f}" for figure in figures),
                f"{low:.2f} - {high:.2f}",
                f"{cost.ratio / cost.bound:.2f}",
            )
        if args.beside:
            _print_beside(decoding, load, slots)
    Console(width=120).print(table)


def _print_beside(decoding: Decoding, load: Load, slots: int) -> None:
    """What a step takes besides its models, and a pass over one; a head "v" reads several tokens at once."""
    heads = {"plain": None} | {
        head: value for head, value in decoding.values.items() if HeadType[head] is HeadType.q
    }
    for head, value in heads.items():
        taking, reading, whole = decoding.beside_models(load, slots, value)
        print(
            f"{slots} slots, {head}: {taking:.2f} ms of a step of {whole:.2f} ms are spent beside models, "
            f"{reading:.2f} ms in a pass over each of them"
        )


def _arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--model", choices=list(SIZES), default="tiny")
    parser.add_argument("--value", choices=list(SIZES), help="backbone of the value model; that of the reference")
    parser.add_argument("--folder", type=Path, help="a trained reference of the addition task, instead of --model")
    parser.add_argument("--head", choices=[head.name for head in HeadType], nargs="+", default=["v", "q"])
    parser.add_argument("--slots", type=positive, nargs="+", default=[16, 64, 256])
    parser.add_argument("--lengths", choices=["equal", "mixed"], default="equal")
    parser.add_argument("--prompt", type=positive, default=16, help="tokens of a prompt")
    parser.add_argument("--new-tokens", type=positive, default=64, help="of a completion; the mean of mixed ones")
    parser.add_argument("--repeats", type=positive, default=9)
    parser.add_argument("--top-k", type=int, default=6)
    parser.add_argument("--min-p", type=float, default=0.02)
    parser.add_argument("--others", choices=[rule.name for rule in Others], default="kept")
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("--beside", action="store_true", help="tell what steps take besides their models, too")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
