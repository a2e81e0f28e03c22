"""On how many held-out prompts policies are evaluated where nobody has said it: on those that there are."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipeline.config.schema import Config, EvaluationConfig

USUAL = EvaluationConfig().num_prompts
_SET = re.compile(r"\+{0,2}evaluation(\.num_prompts)?=")


def give_way(config: Config, given: Sequence[str]) -> None:
    """Let the default of `evaluation.num_prompts` be what the smallest dataset holds out, where that is less.

    Args:
        config: The request, which is changed.
        given: Settings of the command line; a number that is among them stays as it is.
    """
    held_out = _fewest(config)
    if held_out and config.evaluation.num_prompts == USUAL and not _is_set(given):
        config.evaluation.num_prompts = min(USUAL, held_out[0])


def fewer_than_usual(config: Config, given: Sequence[str]) -> str | None:
    """A line on a default that gave way; None where none did."""
    held_out, used = _fewest(config), config.evaluation.num_prompts
    if held_out is None or _is_set(given) or used >= USUAL or used != held_out[0]:
        return None
    return (
        f"every policy is evaluated on {used:,} prompts, since the {config.evaluation.split} split of "
        f"{held_out[1]} has no more (evaluation.num_prompts is {USUAL} where that is not set)"
    )


def _is_set(given: Sequence[str]) -> bool:
    return any(_SET.match(override) for override in given)


def _fewest(config: Config) -> tuple[int, str] | None:
    """How many prompts the smallest dataset holds out, and its key; what is no number yet is refused later."""
    name = f"{config.evaluation.split}_size"
    sizes = [
        (size, f"datasets.{key}")
        for key, dataset in config.datasets.items()
        if isinstance(size := getattr(dataset, name, None), int) and size > 0
    ]
    return min(sizes, default=None)
