"""What a stage knows of its chain's rounds: which data is new, and what it took to generate."""

from __future__ import annotations

from pathlib import Path

from pipeline.algos.base import JobContext
from pipeline.results.outputs import GENERATION, read_generation, read_input
from pipeline.results.paths import json_text

GENERATED = "generate@so_far"


def rounds_to_train_on(ctx: JobContext, *, aggregate: bool) -> tuple[Path, ...]:
    """Folders of generated data: those of all rounds so far, or of this round alone."""
    folders = ctx.inputs[GENERATED]
    # Every round has equally many shards.
    return folders if aggregate else folders[len(folders) // ctx.round * (ctx.round - 1) :]


def write_generation(ctx: JobContext, prompts: int, completions: int, tokens: int) -> None:
    """Note what generation took: prompts, completions and their tokens."""
    about = {"prompts": prompts, "completions": completions, "tokens": tokens}
    (ctx.out / GENERATION).write_text(json_text(about) + "\n")


def tokens_generated(ctx: JobContext) -> int:
    """Tokens that this round has generated to learn from."""
    folders = rounds_to_train_on(ctx, aggregate=False)
    return sum(read_input(folder, GENERATION, read_generation).tokens for folder in folders)
