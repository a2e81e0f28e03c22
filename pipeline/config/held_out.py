"""On how many held-out prompts policies are evaluated where nobody has said it: on those that there are."""

from __future__ import annotations

import re
from collections.abc import Sequence

from omegaconf import DictConfig, Node, OmegaConf

from pipeline.config.schema import Config, EvaluationConfig

USUAL = EvaluationConfig().num_prompts
UNSET = "${usual_prompts:}"
"""In the place of the default while Hydra composes: a number that a file gives may be the same as the default."""
_SET = re.compile(r"\+{0,2}evaluation(\.num_prompts)?=")

OmegaConf.register_new_resolver("usual_prompts", lambda: USUAL, replace=True)


def is_unset(composed: DictConfig) -> bool:
    """Whether neither a file nor the command line gives `evaluation.num_prompts`."""
    section = composed._get_node("evaluation")
    if not isinstance(section, DictConfig) or section._is_none() or section._is_missing():
        return False  # which is refused later
    node = section._get_node("num_prompts")
    return isinstance(node, Node) and bool(node._value() == UNSET)


def give_way(config: Config) -> None:
    """Let the default of `evaluation.num_prompts` be what the smallest dataset holds out, where that is less."""
    if held_out := _fewest(config):
        config.evaluation.num_prompts = min(USUAL, held_out[0])


def fewer_than_usual(config: Config, given: Sequence[str]) -> str | None:
    """A line on a default that gave way; None where none did."""
    held_out, used = _fewest(config), config.evaluation.num_prompts
    if held_out is None or any(map(_SET.match, given)) or used >= USUAL or used != held_out[0]:
        return None
    size = f"{held_out[1]}.{config.evaluation.split}_size"
    return (
        f"every policy is evaluated on {used:,} prompts at most, since {size} "
        f"asks for no more (evaluation.num_prompts is {USUAL} where that is not set)"
    )


def _fewest(config: Config) -> tuple[int, str] | None:
    """How many prompts the smallest dataset holds out, and its key; what is no number yet is refused later."""
    name = f"{config.evaluation.split}_size"
    sizes = [
        (size, f"datasets.{key}")
        for key, dataset in config.datasets.items()
        if isinstance(size := getattr(dataset, name, None), int) and size > 0
    ]
    return min(sizes, default=None)
