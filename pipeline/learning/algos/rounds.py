"""What a stage knows of its chain's rounds: which data is new, and what it took to generate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.files import json_text
from pipeline.learning.algos.base import START_TRAIN, JobContext
from pipeline.learning.algos.shortage import added
from pipeline.outputs.formats import GENERATION, Tally
from pipeline.outputs.reading import read_generation, read_input

SCORED = "score@so_far"


def rounds_to_train_on(ctx: JobContext, *, aggregate: bool) -> tuple[Path, ...]:
    """Folders of generated data: those of all rounds so far, or of this round alone."""
    folders = ctx.inputs.get(SCORED, ())
    # Every round has equally many shards.
    return folders if aggregate else folders[len(folders) // ctx.round * (ctx.round - 1) :]


def started_from(ctx: JobContext, *, previous: bool = True) -> Path | None:
    """The folder of the policy that a round starts from; None for the reference.

    Args:
        ctx: Of the stage.
        previous: Take that of the round before, where there is one; else that of `start` in every round.
    """
    return (ctx.optional_input("train@previous") if previous else None) or ctx.optional_input(START_TRAIN.name)


def write_generation(
    folder: Path, prompts: int, completions: int, tokens: int, tally: Tally | None = None
) -> None:
    """Note what generation took: prompts, completions and their tokens; and what became of them, if given."""
    about: dict[str, Any] = {"prompts": prompts, "completions": completions, "tokens": tokens}
    if tally is not None:
        about["tally"] = asdict(tally)
    (folder / GENERATION).write_text(json_text(about) + "\n")


def tokens_generated(ctx: JobContext) -> int:
    """Tokens that this round has generated to learn from."""
    folders = rounds_to_train_on(ctx, aggregate=False)
    return sum(read_input(folder, GENERATION, read_generation).tokens for folder in folders)


def tally_of(folders: Iterable[Path]) -> Tally | None:
    """What became of what generate stages have drawn, by their outputs."""
    return added(read_input(folder, GENERATION, read_generation).tally for folder in folders)
