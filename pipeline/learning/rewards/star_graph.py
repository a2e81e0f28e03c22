"""Reward 1 for the path of a star graph (arXiv 2403.06963) from start to goal, else 0.

Prompts look like ``7,3|3,9|7,4|4,1/7,9=``: edges, then start and goal; completions like ``7,3,9``. Between two
nodes of a star there is one path, so a valid path and the very path of the solution are the same thing; both are
checked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from pipeline.learning.rewards.traits import RewardTraits, Text, reward, stripped, text_of

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
        float(_right(text_of(prompt), text_of(given), gold))
        for prompt, given, gold in zip(prompts, completions, wanted, strict=True)
    ]


def _right(prompt: str, completion: str, gold: str | None) -> bool:
    edges, start, goal = read_graph(prompt)
    path = nodes(completion)
    if path is None or (gold is not None and path != nodes(gold)):
        return False
    return (path[0], path[-1]) == (start, goal) and all(step in edges for step in pairwise(path))
