"""Decoding by another working tree beside this one's, in turns of one process: what a change has cost or won.

    git worktree add ../before COMMIT
    OMP_NUM_THREADS=1 python -m benchmarks.trees ../before
    OMP_NUM_THREADS=1 python -m benchmarks.trees ../before --head v --slots 64 --repeats 15

The tiny model of `benchmarks.decoding`, prompts of one length and completions of one, in two batches. Packages of
both trees are loaded under the same names, one after the other. CPU seconds; the ratio is the median of the ratios
within a turn, with its quartiles.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AttentionInterface

PACKAGES = ("pipeline", "benchmarks")
PACKED = "pipeline.learning.generation.packed"


def loaded(folder: Path, name: str) -> Any:
    """`benchmarks.decoding` of a tree, whose attention is known to transformers by a name of its own."""
    for module in [module for module in sys.modules if module.partition(".")[0] in PACKAGES]:
        del sys.modules[module]
    sys.path.insert(0, str(folder.resolve()))
    try:
        found = importlib.import_module("benchmarks.decoding")
    finally:
        sys.path.pop(0)
    packed: Any = sys.modules[PACKED]
    packed.NAME = name
    AttentionInterface.register(name, packed._attention)
    return found


def seconds(way: Callable[[Any, int], None], load: Any, slots: int) -> float:
    """CPU seconds of a load."""
    begin = time.process_time()
    way(load, slots)
    return time.process_time() - begin


def main() -> None:
    args = _arguments()
    torch.set_num_threads(1)
    other = loaded(args.folder, "packed_there")
    here = loaded(Path(__file__).parents[1], "packed_here")
    torch.manual_seed(0)
    model = here.frozen(here.MODELS["tiny"](), "cpu")
    there, ours = (
        tree.Ways(model, None if args.head is None else tree.HeadType[args.head], "cpu", tree.Pace())
        for tree in (other, here)
    )
    for slots in args.slots:
        load = here.equal(2 * slots, args.prompt, args.new_tokens)
        ratios = []
        for turn in range(args.repeats + 1):
            before, now = seconds(getattr(there, args.way), load, slots), seconds(ours.slots, load, slots)
            if turn:  # the first one warms up
                ratios.append(before / now)
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"{args.head or 'plain'}, {slots} slots: there / here {middle:.2f} ({low:.2f} - {high:.2f})")


def _arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path, help="another working tree of this repository")
    parser.add_argument("--way", default="slots", help="how the other tree decodes: batches or slots")
    parser.add_argument("--head", choices=["v", "q"], help="guided by a head, not plain")
    parser.add_argument("--slots", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--prompt", type=int, default=72, help="tokens of a prompt")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=9, help="turns, at least two")
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
