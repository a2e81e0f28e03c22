"""Decoding by another working tree beside this one's, in turns of one process: what a change has cost or won.

    git worktree add ../before COMMIT
    OMP_NUM_THREADS=1 python -m benchmarks.trees ../before
    OMP_NUM_THREADS=1 python -m benchmarks.trees ../before --head v --slots 64 --repeats 15
    OMP_NUM_THREADS=1 python -m benchmarks.trees ../before --seed 5 --prompt 8 72 200 --new-tokens 1 16 64

The tiny model of `benchmarks.decoding`, prompts of one length and completions of one, in two batches. Packages of
both trees are loaded under the same names, one after the other. CPU seconds; the ratio is the median of the ratios
within a turn, with its quartiles. A turn has as many loads as come to `TOKENS` new tokens in each of its rows, so
that none is too short for a clock, and every second one begins with this tree. Trees from before
`benchmarks.decoding` (8b6bd47) decode in the one way that they have.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface

PACKAGES = ("pipeline", "benchmarks")
TOKENS = 16
"""New tokens of each row in a turn, at least."""


class Earlier:
    """Decoding by a tree from before `benchmarks.decoding`, on the model that is given."""

    def __init__(self, model: Any, head: str | None) -> None:
        """Load it, of the folder that comes first now."""
        decode, sampling, tilt, guide = (_earlier(name) for name in ("decode", "sampling", "tilt", "guide"))
        self._model, self._decode, self._keys, self._guidance = model, decode, sampling.sample_keys, None
        if head is not None:
            values: Any = importlib.import_module("pipeline.models.value")
            value = values.value_model_from(model, guide.HeadType[head]).eval().requires_grad_(False)
            way = tilt.Tilt(tilt.preference_offset(1.0), top_k=6, min_p=0.02)
            self._guidance = decode.Guidance(guide.value_reader(value), way)

    def slots(self, load: Any, slots: int) -> None:
        """Decode a load."""
        settings = self._decode.DecodeSettings(batch_size=slots)
        keys = self._keys(0, "benchmark", np.arange(len(load.prompts)), 1)
        self._decode.decode(self._model, load.prompts, load.budgets, settings, keys=keys, guidance=self._guidance)

    batches = slots


def _earlier(name: str) -> Any:
    return importlib.import_module(f"pipeline.generation.{name}")


def decoding(folder: Path, name: str, model: Any, head: str | None) -> Any:
    """The ways in which a tree decodes, whose attention is known to transformers by a name of its own.

    Args:
        folder: The tree.
        name: Of its attention.
        model: What decodes.
        head: Guides it.
    """
    for module in [module for module in sys.modules if module.partition(".")[0] in PACKAGES]:
        del sys.modules[module]
    sys.path.insert(0, str(folder.resolve()))
    try:
        if (folder / "benchmarks" / "decoding.py").exists():
            tree: Any = importlib.import_module("benchmarks.decoding")
            ways = tree.Ways(model, None if head is None else tree.HeadType[head], "cpu", tree.Pace())
        else:
            ways = Earlier(model, head)
    finally:
        sys.path.pop(0)
    packed: Any = next(module for path, module in sys.modules.items() if _is_packed(path, module))
    packed.NAME = name
    AttentionInterface.register(name, packed._attention)
    return ways


def _is_packed(path: str, module: ModuleType) -> bool:
    return path.startswith("pipeline.") and path.endswith(".generation.packed") and hasattr(module, "NAME")


def seconds(way: Callable[[Any, int], None], load: Any, slots: int, times: int) -> float:
    """CPU seconds of a load, so many times."""
    begin = time.process_time()
    for _ in range(times):
        way(load, slots)
    return time.process_time() - begin


def main() -> None:
    args = _arguments()
    torch.set_num_threads(1)
    tree: Any = importlib.import_module("benchmarks.decoding")
    torch.manual_seed(args.seed)
    model = tree.frozen(tree.MODELS[args.model](), "cpu")
    there = getattr(decoding(args.folder, "packed_there", model, args.head), args.way)
    here = decoding(Path(__file__).parents[1], "packed_here", model, args.head).slots
    for slots in args.slots:
        for prompt in args.prompt:
            for new in args.new_tokens:
                ratios = compared(there, here, tree.equal(2 * slots, prompt, new), slots, args.repeats)
                low, middle, high = statistics.quantiles(ratios, n=4)
                shape = f"{args.head or 'plain'}, {slots} slots, prompts of {prompt}, {new} new tokens"
                print(f"{shape}: there / here {middle:.3f} ({low:.3f} - {high:.3f})", flush=True)


def compared(there: Any, here: Any, load: Any, slots: int, repeats: int) -> list[float]:
    """Ratios of CPU seconds by turns, after one that warms up."""
    times = -(-TOKENS // int(load.budgets[0]))
    ratios = []
    for turn in range(repeats + 1):
        if turn % 2:
            before, now = seconds(there, load, slots, times), seconds(here, load, slots, times)
        else:
            now, before = seconds(here, load, slots, times), seconds(there, load, slots, times)
        if turn:
            ratios.append(before / now)
    return ratios


def _arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path, help="another working tree of this repository")
    parser.add_argument("--way", default="slots", help="how the other tree decodes: batches or slots")
    parser.add_argument("--head", choices=["v", "q"], help="guided by a head, not plain")
    parser.add_argument("--slots", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--model", default="tiny", help="of `benchmarks.decoding`")
    parser.add_argument("--seed", type=int, default=0, help="of the model's weights")
    parser.add_argument("--prompt", type=int, nargs="+", default=[72], help="tokens of a prompt")
    parser.add_argument("--new-tokens", type=int, nargs="+", default=[64])
    parser.add_argument("--repeats", type=int, default=9, help="turns, at least two")
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
