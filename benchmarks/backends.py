"""Time of decoding by `own`, by transformers' `generate` and by vLLM, plain and guided, and where it goes.

    OMP_NUM_THREADS=1 python -m benchmarks.backends --model FOLDER

FOLDER holds a causal language model of the Llama family with its tokenizer, such as what `fetch` stores for
`model=smollm2`. The value model is its first layers with a random head. Prompts are pieces of the README. Ways
take turns in one process; the start of an engine is not in them. Each ratio is the median of those within a turn
(least - largest), in CPU seconds unless `--clock wall`, so that what else runs on the machine slows all alike. A
step is a forward pass of the policy.

The guide's part is passes of the value model and moves of its rows. Its arithmetic is the same calls as in `own`,
repeated without policy, drawing and loop. `generate` draws by numbers of its own, so its texts are others; it is
plain only, since it is guided without a cache (`benchmarks/generation.py`).
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import PreTrainedModel

from benchmarks.arguments import positive
from pipeline.config.schema import SystemConfig
from pipeline.learning.choices import HeadType, Others
from pipeline.learning.generation import decode, row_models, vllm_engine
from pipeline.learning.generation.sampling import Tilt, preference_offset, sample_keys
from pipeline.learning.models.batch_size import BatchSizes
from pipeline.learning.models.load import frozen, load_policy, load_tokenizer
from pipeline.learning.models.value import ValueModel, value_model_from

SHORTEST, LONGEST = 5, 60
"""Tokens of prompts."""
CALLS = ("stage", "enter", "unstage", "keep", "values", "advance", "read")
"""Methods of guides."""
BESIDE = "vllm beside, guided Q"
"""The guide read by our own code, as a V head is, and not with the policy, by vLLM."""
GUIDES = {None: "plain", "q": "guided Q", "v": "guided V"}


class Clock:
    """Seconds of parts, and how often they were entered; a part within a part counts as the outer one."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.times: Counter[str] = Counter()
        self._inside = 0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time what runs inside."""
        self._inside += 1
        begin = self.now()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self.seconds[name] += self.now() - begin
                self.times[name] += 1

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is timed."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return call(*args, **kwargs)

        return run


class WatchedGuide:
    """A guide whose calls are timed and noted."""

    def __init__(self, guide: row_models.Guide, clock: Clock) -> None:
        self._guide, self._clock = guide, clock
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._guide, name)
        if name not in CALLS:
            return found

        def called(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            with self._clock.part("guide"):
                return found(*args, **kwargs)

        return called


@dataclass
class Spent:
    """What one turn of a way took, in seconds, and what it wrote."""

    whole: float
    policy: float
    guide: float
    steps: int
    tokens: list[list[int]] = field(repr=False)

    @property
    def rest(self) -> float:
        """Seconds of drawing, of the policy's rows and of scheduling."""
        return self.whole - self.policy - self.guide


class Bench:
    """A policy, its value models, and what they complete."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.clock = Clock(time.process_time if args.clock == "cpu" else time.perf_counter)
        self.rows: int = args.rows
        self.model = load_policy(args.model, SystemConfig(), "cpu")
        self.model.generation_config.eos_token_id = None
        self.model.forward = self.clock.timed("policy", self.model.forward)
        self.values = {head: _value_model(self.model, head, args.layers) for head in ("q", "v")}
        self.tilt = Tilt(preference_offset(1.0), args.top_k, args.min_p, Others.kept)
        numbers = np.random.default_rng(0)
        text = (Path(__file__).parents[1] / "README.md").read_text()
        ids = list(load_tokenizer(args.model)(text)["input_ids"])
        lengths = numbers.integers(SHORTEST, LONGEST + 1, args.count)
        begins = numbers.integers(0, len(ids) - LONGEST, args.count)
        self.prompts = [ids[begin : begin + length] for begin, length in zip(begins, lengths, strict=True)]
        self.budgets = numbers.integers(args.new_tokens // 4, args.new_tokens + 1, args.count)
        self.keys = sample_keys(0, "benchmark", np.arange(args.count), 1)
        self.settings = decode.DecodeSettings(batch_size=args.rows)
        self.calls: dict[str, list[tuple[str, tuple[Any, ...], dict[str, Any]]]] = {}
        self._watched: WatchedGuide | None = None

    @property
    def width(self) -> int:
        """Tokens of the longest text."""
        return int((np.array([len(prompt) for prompt in self.prompts]) + self.budgets).max())

    def few(self) -> list[int]:
        """Prompts to warm up with; the longest text is among them, so that an engine is made for all."""
        lengths = np.array([len(prompt) for prompt in self.prompts]) + self.budgets
        return np.argsort(-lengths)[:4].tolist()  # type: ignore[no-any-return]

    def spent(self, write: Callable[[], list[list[int]]]) -> Spent:
        """Run one turn of a way."""
        self.clock.seconds.clear()
        self.clock.times.clear()
        begin = self.clock.now()
        tokens = write()
        whole = self.clock.now() - begin
        seconds, times = self.clock.seconds, self.clock.times
        return Spent(whole, seconds["policy"], seconds["guide"], times["policy"], tokens)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the guides that are made inside."""
        made = row_models.guide_of

        def guide_of(*args: Any) -> WatchedGuide:
            self._watched = WatchedGuide(made(*args), self.clock)
            return self._watched

        row_models.guide_of = guide_of  # type: ignore[assignment]
        try:
            yield
        finally:
            row_models.guide_of = made

    def guidance(self, head: str | None) -> decode.Guidance | None:
        """Return the guidance by a head."""
        return None if head is None else decode.Guidance(self.values[head], self.tilt)

    def work(self, which: Sequence[int] | None) -> tuple[decode.DecodingWork, NDArray[np.uint64]]:
        """Return some prompts (None: all) to complete, with their RNG keys."""
        which = range(len(self.prompts)) if which is None else which
        work = decode.DecodingWork([self.prompts[at] for at in which], self.budgets[list(which)], 1)
        return work, self.keys[list(which)]

    def own(self, head: str | None, which: Sequence[int] | None = None) -> list[list[int]]:
        """Complete prompts by our own decoder."""
        work, keys = self.work(which)
        with self.watched():
            decode.do(work, self.model, self.settings, keys=keys, guidance=self.guidance(head))
        if head is not None and self._watched is not None:
            self.calls[head] = self._watched.calls
        return work.tokens

    @torch.inference_mode()
    def alone(self, head: str) -> list[list[int]]:
        """Repeat what the value model computed for `own`, with nothing else."""
        guide = row_models.guide_of(self.values[head], self.rows, self.width, 0)
        with self.clock.part("guide"):
            for name, args, kwargs in self.calls[head]:
                getattr(guide, name)(*args, **kwargs)
        return []

    def vllm(self, head: str | None, beside: bool, which: Sequence[int] | None = None) -> list[list[int]]:
        """Complete prompts by vLLM; `beside` has no guide read with the policy."""
        work, keys = self.work(which)
        sizes = BatchSizes(None, "cpu", self.model)
        inside = vllm_engine.VLLMBackend._inside
        if beside:
            vllm_engine.VLLMBackend._inside = lambda _: None  # type: ignore[method-assign, assignment]
        try:
            with self.watched():
                backend = vllm_engine.VLLMBackend(self.model, self.settings, sizes, None, self.guidance(head))
                backend.complete(work, keys)
        finally:
            vllm_engine.VLLMBackend._inside = inside  # type: ignore[method-assign]
        return work.tokens

    def start_engine(self, head: str | None, beside: bool) -> None:
        """Start the engine of a way, unless it runs, and time its parts."""
        before = [*vllm_engine._kept]
        self.vllm(head, beside, self.few())
        if vllm_engine._kept != before:
            self._watch_engine()

    def _watch_engine(self) -> None:
        engine = vllm_engine._kept[0]
        found: list[nn.Module] = []
        engine.llm.apply_model(found.append)
        policy: Any = found[0]
        if hasattr(policy, "guide"):
            for part in (policy.guide, policy.value_head):
                part.forward = self.clock.timed("guide", part.forward)
            policy = policy.policy
        policy.forward = self.clock.timed("policy", policy.forward)
        outputs: Any = policy.compute_logits

        def logits(*args: Any) -> Any:  # the second half of a pass
            with self.clock.part("policy"):
                result = outputs(*args)
            self.clock.times["policy"] -= 1
            return result

        policy.compute_logits = logits
        engine.draws._follow = self.clock.timed("guide", engine.draws._follow)  # type: ignore[method-assign]

    @torch.inference_mode()
    def transformers(self, which: Sequence[int] | None = None) -> list[list[int]]:
        """Complete prompts by `generate`, the shortest first, in batches that end with their longest row."""
        which = range(len(self.prompts)) if which is None else which
        order = sorted(which, key=lambda at: len(self.prompts[at]))
        written: dict[int, list[int]] = {}
        for start in range(0, len(order), self.rows):
            part = order[start : start + self.rows]
            batch = row_models.padded([self.prompts[at] for at in part], 0, "cpu", "left")
            mask = torch.ones_like(batch.ids) if batch.mask is None else batch.mask
            longest = int(self.budgets[part].max())
            ids = self.model.generate(  # type: ignore[operator]
                batch.ids,
                attention_mask=mask,
                max_new_tokens=longest,
                min_new_tokens=longest,
                do_sample=True,
                top_k=0,
                top_p=1.0,
                temperature=1.0,
                repetition_penalty=1.0,
                pad_token_id=0,
            )
            rows = ids[:, batch.ids.shape[1] :].tolist()
            written |= {at: row[: int(self.budgets[at])] for at, row in zip(part, rows, strict=True)}
        return [written[at] for at in which]


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    bench = Bench(args)
    has_vllm = importlib.util.find_spec("vllm") is not None
    ways: dict[str, Callable[[], list[list[int]]]] = {}
    guides = {head: name for head, name in GUIDES.items() if args.guided is None or head in args.guided}
    for head, name in guides.items():
        ways[f"own, {name}"] = lambda head=head: bench.own(head)  # type: ignore[misc]
        if head is None and not args.no_transformers:
            ways["transformers, plain"] = bench.transformers
        if has_vllm:
            ways[f"vllm, {name}"] = lambda head=head: bench.vllm(head, beside=False)  # type: ignore[misc]
        if has_vllm and head == "q":
            ways[BESIDE] = lambda: bench.vllm("q", beside=True)
        if head is not None:
            ways[f"arithmetic {head}"] = lambda head=head: bench.alone(head)  # type: ignore[misc]
    for head in guides:  # warms up
        bench.own(head, bench.few())
    turns: dict[str, list[Spent]] = defaultdict(list)
    for _ in range(args.repeats):
        for way, write in ways.items():
            if way.startswith("vllm"):
                head = next(head for head, name in GUIDES.items() if way.endswith(name))
                bench.start_engine(head, way == BESIDE)
            turns[way].append(bench.spent(write))
    vllm_engine.release()
    Console(width=max(180, Console().width)).print(_table(bench, turns, args))
    if not has_vllm:
        print("vLLM is left out: it is not installed for this Python.")


def _table(bench: Bench, turns: dict[str, list[Spent]], args: argparse.Namespace) -> Table:
    title = (
        f"{args.rows} rows, {len(bench.prompts)} prompts of {SHORTEST}-{LONGEST} tokens, {bench.budgets.min()}-"
        f"{bench.budgets.max()} new tokens, value model of {args.layers} layers, float32, {args.threads} "
        f"thread(s), {args.repeats} turns; ms per step, {args.clock} time"
    )
    table = Table(title=title, box=box.MARKDOWN)
    columns = (
        "steps",
        "policy",
        "guide",
        "rest",
        "all",
        "time / own",
        "guide / its arithmetic",
        "as own",
        "tokens",
    )
    for column in ("", *columns):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for way, spent in turns.items():
        if way.startswith("arithmetic"):
            continue
        name = way.split(", ")[1]
        texts, own = spent[0].tokens, turns[f"own, {name}"]
        alone = turns.get(f"arithmetic {name[-1].lower()}", [])
        same = sum(one == other for one, other in zip(texts, own[0].tokens, strict=True))
        table.add_row(
            way,
            str(spent[0].steps),
            *(
                f"{1e3 * statistics.median(getattr(turn, part) for turn in spent) / spent[0].steps:.1f}"
                for part in ("policy", "guide", "rest", "whole")
            ),
            _ratio([turn.whole for turn in spent], [turn.whole for turn in own]),
            _ratio([turn.guide for turn in spent], [turn.guide for turn in alone]),
            "" if way.startswith("transformers") else f"{same} of {len(texts)}",
            str(sum(map(len, texts))),
        )
    return table


def _ratio(above: Sequence[float], below: Sequence[float]) -> str:
    """Return the median of the ratios within turns, with the least and the largest."""
    ratios = sorted(one / other for one, other in zip(above, below, strict=False))
    if not ratios:
        return ""
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"


def _value_model(model: PreTrainedModel, head: str, layers: int) -> ValueModel:
    """Return a value model of the first layers of a policy, with a random head."""
    short: Any = copy.deepcopy(model)
    short.config.num_hidden_layers = layers
    short.model.layers = short.model.layers[:layers]
    value = value_model_from(short, HeadType[head])
    torch.manual_seed(1)
    nn.init.normal_(value.head.weight, std=0.05)
    return frozen(value, "cpu")


def _arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of a language model with its tokenizer")
    parser.add_argument("--guided", nargs="+", choices=["q", "v"], help="heads; otherwise plain ones as well")
    parser.add_argument("--layers", type=positive, default=4, help="layers of the value model")
    parser.add_argument("--rows", type=positive, default=64, help="rows at once")
    parser.add_argument("--count", type=positive, default=96, help="prompts")
    parser.add_argument(
        "--new-tokens", type=positive, default=16, help="most new tokens; the fewest are a quarter"
    )
    parser.add_argument("--top-k", type=positive, default=6)
    parser.add_argument("--min-p", type=float, default=0.02)
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("--clock", choices=["cpu", "wall"], default="cpu")
    parser.add_argument("--no-transformers", action="store_true", help="leave its `generate` out, which is slow")
    args = parser.parse_args(arguments)
    if not (args.model / "config.json").is_file():
        parser.error(f"argument --model: there is no config.json in {args.model}")
    return args


if __name__ == "__main__":
    main()
