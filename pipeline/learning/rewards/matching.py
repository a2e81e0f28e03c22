"""Reward 1 for the very text of the solution, else 0."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from pipeline.learning.rewards.answers import (
    answer_part,
    compared,
    compares,
    gold_box,
    last_box,
    last_boxed,
    written,
)
from pipeline.learning.rewards.traits import RewardTraits, Text, judged, reward, stripped, text_of


def _right(columns: Mapping[str, Any]) -> Sequence[str]:
    text = written(columns["solution"], "exact_match")
    return [] if text is None else [text]


@reward(compares(isolated=False, answer=stripped, right=_right, gold=_right, version=2))
def exact_match(completions: Sequence[Text], solution: Sequence[Any], **_: Any) -> list[float | None]:
    """Compare each completion with its solution, both without surrounding white space.

    Args:
        completions: Texts or conversations.
        solution: The dataset's column of that name, a number as it is written; a row without one gets None.

    Raises:
        DataError: A solution is neither text nor number.
    """
    wanted = [written(each, "exact_match") for each in solution]
    return judged(completions, wanted, lambda given, right: float(text_of(given).strip() == right.strip()))


# -- length ------------------------------------------------------------------------------------------------------
# Minus the length of a completion, to be mixed with another reward so that short answers win ties.


@reward(RewardTraits(pointwise=True, verifies=False, graded=True, judges="length", isolated=False, version=2))
def length(completion_ids: Sequence[Sequence[int]], per: float = 100.0, **_: Any) -> list[float | None]:
    """-1 for every `per` tokens.

    Args:
        completion_ids: Sampled token ids, an end-of-text token included.
        per: Tokens that cost 1.
    """
    return [-len(ids) / per for ids in completion_ids]


# -- star graph --------------------------------------------------------------------------------------------------
# Reward 1 for the path of a star graph (arXiv 2403.06963) from start to goal, else 0. Prompts look like
# ``7,3|3,9|7,4|4,1/7,9=``: edges, then start and goal; completions like ``7,3,9``. Between two nodes of a
# star there is one path, so a valid path and the very path of the solution are the same thing; both are
# checked.


_PATH = re.compile(r"\s*\d+(?:\s*,\s*\d+)*\s*")


def nodes(text: str) -> list[str] | None:
    """Nodes of a path as written, or None for a text that is no path."""
    return re.findall(r"\d+", text) if _PATH.fullmatch(text) else None


def read_graph(prompt: str) -> tuple[set[tuple[str, str]], str, str]:
    """Directed edges, start and goal of a prompt.

    Raises:
        ValueError: The prompt is no star graph.
    """
    graph, slash, question = prompt.strip().rstrip("=").rpartition("/")
    ends = nodes(question)
    edges = [nodes(edge) for edge in graph.split("|")]
    if not slash or ends is None or len(ends) != 2 or any(edge is None or len(edge) != 2 for edge in edges):
        raise ValueError(f"not a star graph such as '7,3|3,9/7,9=': {prompt!r}")
    return {(edge[0], edge[1]) for edge in edges if edge}, ends[0], ends[1]


@reward(RewardTraits(pointwise=True, verifies=True, judges="correctness", isolated=False, answer=stripped))
def star_graph(
    prompts: Sequence[Text], completions: Sequence[Text], solution: Sequence[str] | None = None, **_: Any
) -> list[float | None]:
    """Judge paths.

    Args:
        prompts: Graphs with start and goal.
        completions: Paths.
        solution: Column with the path. Without it, any valid path counts.
    """
    wanted: Sequence[str | None] = [None] * len(prompts) if solution is None else solution
    return [
        float(_star_graph_right(text_of(prompt), text_of(given), gold))
        for prompt, given, gold in zip(prompts, completions, wanted, strict=True)
    ]


def _star_graph_right(prompt: str, completion: str, gold: str | None) -> bool:
    edges, start, goal = read_graph(prompt)
    path = nodes(completion)
    if path is None or (gold is not None and path != nodes(gold)):
        return False
    return (path[0], path[-1]) == (start, goal) and all(step in edges for step in pairwise(path))


# -- boxed -------------------------------------------------------------------------------------------------------
# Reward 1 for the text of the solution inside the last ``\boxed{...}``, else 0.


_SPACING = re.compile(r"\\[,;:!> ]|\\left(?![a-zA-Z])|\\right(?![a-zA-Z])|(?<!\d)\s+|\s++(?!\d+/\d)|[~$]")
"""None that makes a mixed number."""
_FONT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\{([^{}]*)\}")
_THOUSANDS = re.compile(r"-?\d{1,3}(?:(?:,|\{,\})\d{3})+(?:\.\d+)?")


def plain(answer: str) -> str:
    """An answer without spacing, fonts, ``$`` and a final point, so that ways of typing it compare equal."""
    text = (
        _SPACING.sub("", _FONT.sub(r"\1", answer))
        .replace("\\dfrac", "\\frac")
        .replace("\\tfrac", "\\frac")
        .rstrip(".")
    )
    return re.sub(r"[,{}]", "", text) if _THOUSANDS.fullmatch(text) else text


def boxed_answer(completion: Text) -> str | None:
    """The boxed answer of a completion in plain form, or None."""
    return _boxed(answer_part(text_of(completion)))


def _boxed(text: str) -> str | None:
    inside = last_boxed(text)
    return None if inside is None else plain(inside) or None


def _gold(columns: Mapping[str, Any]) -> Sequence[str]:
    r"""The answer in a box, be it prose."""
    return [text if "boxed" in text else rf"\boxed{{{text}}}" for text in gold_box(columns)]


@reward(compares(answer=boxed_answer, gold=_gold, version=5))
def boxed(completions: Sequence[Text], solution: Sequence[Any], **_: Any) -> list[float | None]:
    r"""Compare boxed answers as text. For mathematical equality use `math_verify`.

    Args:
        completions: Texts or conversations.
        solution: Column with a solution that boxes its answer, or with the bare answer. Rows without one get None.

    Raises:
        DataError: A solution is neither text nor number.
    """
    return compared(completions, solution, "boxed", same_text)


def same_text(given: Text, wanted: str) -> float | None:
    """1 for a completion that boxes the answer of a solution, as text, 0 for another; None where that has none."""
    right = plain(wanted) if last_box(wanted) is None else _boxed(wanted)
    return None if right is None else float(boxed_answer(given) == right)
