"""What a stage knows of its chain's rounds: which data is new, and what it took to generate."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pipeline.files import json_text
from pipeline.learning.algos.base import START_TRAIN, JobContext
from pipeline.outputs.formats import GENERATION, Calibration, Tally, read_generation, read_input

# -- shortage ----------------------------------------------------------------------------------------------------
# What is said of a training that had next to nothing to learn from, or that has learnt next to nothing.


LEAST_BATCHES = 1
"""Batches that a training should have at least. With fewer, an epoch is one step, on less than was asked for."""
LEAST_PROMPTS = 20
"""Held-out prompts that it takes to say that a value model has learnt nothing. With fewer, chance says it."""

PAIRS = "pairs"
"""What a tally counts of a dataset's own pairs."""
COMPLETIONS = "completions"
"""What it counts where each of them is judged by itself."""

log = logging.getLogger("pipeline")


def added(tallies: Iterable[Tally | None]) -> Tally | None:
    """The tallies of several generations together; None where one has none."""
    found = list(tallies)
    known = [tally for tally in found if tally is not None]
    if not found or len(known) < len(found):
        return None
    sums = {item.name: sum(getattr(tally, item.name) for tally in known) for item in fields(Tally)[1:]}
    return Tally(known[0].what, **sums)


def shortage(kept: int, batch_size: int, tally: Tally | None, what: str = "trained on") -> str | None:
    """Say that there was little to train on, or None where there was enough.

    Args:
        kept: Sequences that can teach something.
        batch_size: Sequences of an optimizer step.
        tally: What they were taken from.
        what: What was done with them.
    """
    if kept >= LEAST_BATCHES * batch_size:
        return None
    why = "" if tally is None else f"; {tally}"
    if kept == 0:
        return f"{what} nothing (0 sequences){why}"
    return f"{what} {kept} sequence{'' if kept == 1 else 's'}, fewer than one batch of {batch_size}{why}"


def uninformed(calibration: Calibration | None) -> str | None:
    """Say that a value model is no better than the base rate on held-out prompts, or None where it is better.

    That is so where its Brier skill is 0 or less, or where its area under the ROC curve is not above 0.5 by more
    than its standard error, which is known where enough prompts have each of the labels.

    Args:
        calibration: Of the value model; None where nothing was held out.
    """
    if calibration is None or calibration.prompts < LEAST_PROMPTS:
        return None
    where = f"on {calibration.prompts} held-out prompts"
    if calibration.brier is None:
        return f"the value model predicts what is no number {where}: its training has diverged"
    area, error, skill = calibration.auc, calibration.auc_se, calibration.brier_skill
    unranked = area is not None and error is not None and area - error <= 0.5
    if skill is None or (skill > 0 and not unranked):
        return None
    about = "" if error is None else f" +- {error:.3f}"
    shown = "" if area is None else f"AUC {area:.3f}{about}, "
    return f"the value model is no better than the base rate {where} ({shown}Brier skill {skill:.3f})"


def teaching(about: Mapping[str, Any], group_size: int) -> int | None:
    """Sequences that could teach something, by what a method reports of its training; None where it does not say.

    Args:
        about: Its ``training.json``.
        group_size: Completions of a group, where it goes by groups.
    """
    sequences, pairs, groups = (about.get(name) for name in ("sequences", "pairs", "groups"))
    silent = about.get("groups_without_signal", 0)
    if isinstance(sequences, int):
        return sequences
    if isinstance(pairs, int):
        return 2 * pairs
    return (groups - silent) * group_size if isinstance(groups, int) and isinstance(silent, int) else None


def left_out(tally: Tally | None) -> str | None:
    """Say what of the pairs or completions that a dataset has is not trained on, or None where all is."""
    if tally is None or tally.what not in (PAIRS, COMPLETIONS):
        return None
    said = []
    if tally.same:
        said.append(f"{tally.same:,} of {tally.count:,} pairs are left out: their two answers are equal")
    if tally.parted:
        said.append(
            f"{tally.parted:,} of {tally.count:,} {tally.what} are trained on without the end of their prompt: "
            "the chat template writes it otherwise where an answer follows, or tokens merge there"
        )
    if tally.endless:
        said.append(
            f"{tally.endless:,} of {tally.count:,} {tally.what} have an answer with no token behind it "
            "that ends a completion, so that the model does not learn to end: its chat template or tokenizer "
            "writes none"
        )
    return "; ".join(said) or None


def noted(
    kept: int | None,
    batch_size: int,
    tally: Tally | None,
    what: str = "trained on",
    calibration: Calibration | None = None,
    told: str | None = None,
) -> dict[str, str]:
    """What to add to ``training.json``: a note, said in the job's log as well, or nothing."""
    scarce = None if kept is None else shortage(kept, batch_size, tally, what)
    said = [note for note in (scarce, left_out(tally), uninformed(calibration), told) if note]
    for note in said:
        log.warning("%s", note)
    return {"note": "; ".join(said)} if said else {}


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
