"""Addition of two numbers, every number written least significant digit first: ``321+654=9750`` is 123 + 456.

The demonstrations that the reference learns from are of mixed quality: some drop every carry. The reference
imitates both kinds, so it is mediocre for a known reason, and there is something to gain by selecting.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from pipeline.config.schema import Config, DatasetConfig, number
from pipeline.learning.datasets.base import Dataset, Row


@dataclass(kw_only=True)
class AdditionConfig(DatasetConfig):
    """Addition of two numbers, operands and sum written least significant digit first."""

    digits: int = number(3, at_least=1, at_most=4)
    """Digits of each of the two numbers."""
    carry_drop: float = number(0.6, at_least=0, at_most=1)
    """Share of the reference's demonstrations that ignore every carry."""


class Addition(Dataset):
    """Rows are pairs (a, b) of numbers with `digits` digits each; row id = a * 10**digits + b."""

    vocabulary: Sequence[str] = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "<bos>", "+", "=")
    config_class: ClassVar[type[DatasetConfig]] = AdditionConfig
    bos_token: ClassVar[str] = "<bos>"  # noqa: S105 - a token of text
    fixed_length = True
    note: ClassVar[str] = (
        "addition: the reference imitates demonstrations of which a known share drops every carry. Methods select "
        "among what it already does; no new skill is taught."
    )

    def __init__(self, config: AdditionConfig) -> None:
        super().__init__(config)
        self.digits = config.digits
        self.carry_drop = config.carry_drop
        self.completion_length = config.digits + 1
        self.split_ids("addition", 10 ** (2 * config.digits))

    def row(self, row_id: int) -> Row:
        """Prompt ``321+654=`` and column ``solution`` ``9750``."""
        a, b = divmod(row_id, 10**self.digits)
        return Row(row_id, self._prompt(a, b), {"solution": _reversed(a + b, self.digits + 1)})

    def demonstration(self, row_id: int, draw: float) -> tuple[str, str]:
        """The sum, or with probability `carry_drop` the sum without any carry."""
        a, b = divmod(row_id, 10**self.digits)
        if draw >= self.carry_drop:
            return self._prompt(a, b), _reversed(a + b, self.digits + 1)
        pairs = zip(_reversed(a, self.digits), _reversed(b, self.digits), strict=True)
        return self._prompt(a, b), "".join(str((int(x) + int(y)) % 10) for x, y in pairs) + "0"

    def _prompt(self, a: int, b: int) -> str:
        return f"{_reversed(a, self.digits)}+{_reversed(b, self.digits)}="


def _reversed(number: int, digits: int) -> str:
    return f"{number:0{digits}d}"[::-1]


# -- star graph --------------------------------------------------------------------------------------------------
# Star graphs G(d, l): which of d arms leads to the goal? ``12,3|12,40|.../12,7=`` is answered
# ``12,40,...,7``. The testbed of arXiv 2403.06963: a model that learns to continue right paths learns to
# follow edges, but guesses the first step, since seeing where an arm ends takes looking ahead. It is right
# once in d times and stays there.


@dataclass(kw_only=True)
class StarGraphConfig(DatasetConfig):
    """Paths in star graphs G(d, l) (arXiv 2403.06963), made from the seed and the row's id."""

    degree: int = number(2, at_least=2, at_most=10_000)
    """Arms of the graph, d."""
    path_length: int = number(5, at_least=2, at_most=10_000)
    """Nodes of an arm, the centre included, l."""
    labels: int = number(50, at_least=1, at_most=1_000_000)
    """Names that nodes may have: 0 up to labels - 1."""
    random_arm: float = number(0.0, at_least=0, at_most=1)
    """Share of the reference's demonstrations that walk down an arm drawn blindly; 0 shows right paths alone."""
    train_size: int = number(200_000, at_least=1, at_most=10_000_000)
    """Rows to train on, of which rounds draw."""

    @property
    def nodes(self) -> int:
        """Of a graph."""
        return 1 + self.degree * (self.path_length - 1)

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Graphs that cannot be named, or are too few."""
        graph = f"{key}: G({self.degree},{self.path_length})"
        if self.nodes > self.labels:
            yield (
                f"{graph} has {self.nodes} nodes, but labels={self.labels} names only {self.labels}; set "
                f"{key}.labels={self.nodes} or more"
            )
        # Splits are found by drawing again, and rounds want different graphs: there must be plenty.
        elif self.nodes < 5 or self.labels < 8:
            yield (
                f"{graph} with {key}.labels={self.labels} has too few graphs to keep splits apart; take at least "
                "5 nodes and 8 labels"
            )


_GRAPHS = 3
"""Purpose of the streams that graphs are drawn from."""
_SHARES = 4
"""Ids and graphs are dealt into four shares: one for tests, one for validation, two to train on."""


@dataclass(frozen=True)
class Graph:
    """A star of arms.

    Attributes:
        arms: Labels of each arm from the centre outward; all begin with the centre.
        goal: The arm that ends in the goal.
        edges: Pairs of neighbours, the one nearer to the centre first, shuffled.
    """

    arms: tuple[tuple[int, ...], ...]
    goal: int
    edges: tuple[tuple[int, int], ...]

    @property
    def prompt(self) -> str:
        """``a,b|c,d|.../start,goal=``."""
        edges = "|".join(f"{near},{far}" for near, far in self.edges)
        return f"{edges}/{self.arms[0][0]},{self.arms[self.goal][-1]}="

    def path(self, arm: int) -> str:
        """An arm as a completion writes it."""
        return ",".join(map(str, self.arms[arm]))


class StarGraph(Dataset):
    """Rows are drawn from (seed, id), so there are as many as anybody asks for.

    The id says the split: id modulo 4 is 0 for test, 1 for validation, else train. A graph belongs to a split by
    the hash of its edges, start and goal, and a row is drawn until its graph belongs to the row's split: no graph
    is ever in two of them, however its edges are shuffled.
    """

    config_class: ClassVar[type[DatasetConfig]] = StarGraphConfig
    bos_token: ClassVar[str] = "<bos>"  # noqa: S105 - a token of text
    symbol_pattern: ClassVar[str] = r"\d+|."
    fixed_length = True
    note: ClassVar[str] = (
        "star_graph: the reference learns from right paths. Trained long enough it follows edges but guesses the "
        "first step, so it is right about once in `degree` times."
    )

    def __init__(self, config: StarGraphConfig) -> None:
        super().__init__(config)
        self.graph = config
        self.vocabulary: Sequence[str] = (*map(str, range(config.labels)), "<bos>", ",", "|", "/", "=")
        self.completion_length = 2 * config.path_length - 1
        train = np.arange(config.train_size)
        self._splits = {
            "test": np.arange(config.test_size) * _SHARES,
            "validation": np.arange(config.validation_size) * _SHARES + 1,
            "train": train // 2 * _SHARES + 2 + train % 2,
        }

    def row(self, row_id: int) -> Row:
        """Prompt ``12,3|12,40|.../12,7=`` and column ``solution``, the path from start to goal."""
        graph = self.draw(row_id)
        return Row(row_id, graph.prompt, {"solution": graph.path(graph.goal)})

    def demonstration(self, row_id: int, draw: float) -> tuple[str, str]:
        """The right path, or with probability `random_arm` that of an arm chosen blindly."""
        graph, blind = self.draw(row_id), self.graph.random_arm
        arm = int(draw / blind * self.graph.degree) if draw < blind else graph.goal
        return graph.prompt, graph.path(arm)

    def draw(self, row_id: int) -> Graph:
        """The graph of a row."""
        # The last counter word keeps these streams apart from permutations under the same key.
        stream = np.random.Philox(key=[self.config.seed, row_id], counter=[0, 0, 0, _GRAPHS])
        generator = np.random.Generator(stream)
        wanted = min(row_id % _SHARES, 2)
        while True:
            graph = self._draw(generator)
            if min(_share(graph), 2) == wanted:
                return graph

    def _draw(self, generator: np.random.Generator) -> Graph:
        degree, length = self.graph.degree, self.graph.path_length
        centre, *rest = generator.permutation(self.graph.labels)[: self.graph.nodes].tolist()
        arms = [(centre, *rest[at : at + length - 1]) for at in range(0, len(rest), length - 1)]
        edges = [pair for arm in arms for pair in pairwise(arm)]
        order = generator.permutation(len(edges))
        return Graph(tuple(arms), int(generator.integers(degree)), tuple(edges[place] for place in order))


def _share(graph: Graph) -> int:
    same = f"{sorted(graph.edges)}/{graph.arms[graph.goal][-1]}"
    return hashlib.sha256(same.encode()).digest()[0] % _SHARES
