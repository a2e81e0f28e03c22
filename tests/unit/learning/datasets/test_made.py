"""Addition: rows, disjoint splits, the rounds of a chain, demonstrations."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from pipeline.config.schema import DatasetConfig
from pipeline.config.tables import DATASETS
from pipeline.errors import ConfigError
from pipeline.learning.datasets.base import SPLITS, load_dataset
from pipeline.learning.datasets.shipped import Addition, AdditionConfig, StarGraph, StarGraphConfig


def addition(**settings: object) -> Addition:
    small = {"digits": 2, "test_size": 100, "validation_size": 50, **settings}
    return Addition(AdditionConfig(kind="addition", **small))  # type: ignore[arg-type]


def number(text: str) -> int:
    return int(text[::-1])


def test_every_row_is_right_and_fits_its_bounds() -> None:
    dataset = addition()
    for row_id in range(10_000):
        row = dataset.row(row_id)
        a, b = row.prompt.removesuffix("=").split("+")
        assert number(a) + number(b) == number(row.columns["solution"])
        assert number(a) * 100 + number(b) == row_id
        assert len(row.columns["solution"]) == dataset.completion_length == 3


def test_splits_are_disjoint_and_cover_everything() -> None:
    dataset = addition()
    splits = [dataset.ids(name) for name in SPLITS]
    assert [len(ids) for ids in splits] == [9850, 50, 100]
    assert np.array_equal(np.sort(np.concatenate(splits)), np.arange(10_000))


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_rounds_use_training_rows_only_and_different_ones_while_they_last(seed: int) -> None:
    dataset = addition()
    rounds = [dataset.round_ids(seed, number, 3000) for number in (1, 2, 3)]
    used = np.concatenate(rounds)
    assert len(np.unique(used)) == 9000
    assert set(used.tolist()) <= set(dataset.ids("train").tolist())
    fourth = dataset.round_ids(seed, 4, 3000)
    assert len(fourth) == 3000
    assert set(fourth.tolist()) <= set(dataset.ids("train").tolist())


def test_demonstrations_drop_every_carry_or_none() -> None:
    dataset = load_dataset(AdditionConfig(kind="addition", carry_drop=0.6))
    row_id = 567_678  # 567 + 678 = 1245; without carries 5+6, 6+7, 7+8 leave 1, 3, 5
    assert dataset.demonstration(row_id, 0.6) == ("765+876=", "5421")
    assert dataset.demonstration(row_id, 0.599) == ("765+876=", "5310")
    assert dataset.demonstration(111_222, 0.0)[1] == dataset.demonstration(111_222, 0.9)[1] == "3330"


def test_splits_that_leave_nothing_to_train_on_are_refused() -> None:
    with pytest.raises(ConfigError, match="leave nothing of its 100 rows"):
        addition(digits=1)


def test_an_unknown_dataset_or_split_lists_the_known_ones() -> None:
    assert "addition" in DATASETS
    with pytest.raises(ConfigError, match="Did you mean 'addition'"):
        load_dataset(DatasetConfig(kind="adition"))
    with pytest.raises(ConfigError, match="test, train, validation"):
        addition().ids("dev")


# -- test star graph ---------------------------------------------------------------------------------------------
# Star graphs: every graph is what the papers describe, checked by reading the prompt alone.


def star(**settings: object) -> StarGraph:
    small = {"test_size": 50, "validation_size": 50, "train_size": 200, **settings}
    return StarGraph(StarGraphConfig(kind="star_graph", **small))  # type: ignore[arg-type]


def parse(prompt: str) -> tuple[list[tuple[int, int]], int, int]:
    edges, _, ends = prompt.removesuffix("=").partition("/")
    start, goal = map(int, ends.split(","))
    return [(int(a), int(b)) for a, b in (edge.split(",") for edge in edges.split("|"))], start, goal


@pytest.mark.parametrize(("degree", "length"), [(2, 5), (3, 8), (5, 5), (4, 2)])
def test_a_graph_is_a_star_with_one_path_to_the_goal(degree: int, length: int) -> None:
    dataset = star(degree=degree, path_length=length)
    for row_id in range(150):
        row = dataset.row(row_id)
        assert isinstance(row.prompt, str)
        edges, start, goal = parse(row.prompt)
        nodes = {node for edge in edges for node in edge}
        assert len(edges) == len(set(edges)) == degree * (length - 1)
        assert len(nodes) == len(edges) + 1
        assert nodes <= set(range(50))
        leaving, arriving = Counter(a for a, _ in edges), Counter(b for _, b in edges)
        assert leaving[start] == degree
        assert start not in arriving
        assert all(leaving[node] <= 1 for node in nodes - {start})
        assert set(arriving.values()) == {1}
        assert goal not in leaving
        # From the goal backwards there is one way, which is the solution.
        before = {b: a for a, b in edges}
        path = [goal]
        while path[0] != start:
            path.insert(0, before[path[0]])
        assert (len(path), ",".join(map(str, path))) == (length, row.columns["solution"])


def test_splits_are_disjoint_by_content_even_where_there_are_few_graphs() -> None:
    dataset = star(degree=2, path_length=3, labels=8, test_size=500, validation_size=500, train_size=1000)
    assert [len(dataset.ids(split)) for split in SPLITS] == [1000, 500, 500]
    seen = {}
    for split in SPLITS:
        parsed = (parse(str(dataset.row(int(row_id)).prompt)) for row_id in dataset.ids(split))
        seen[split] = {(tuple(sorted(edges)), start, goal) for edges, start, goal in parsed}
    # So few graphs exist that splits would overlap if rows were dealt by id alone.
    assert len(seen["train"]) < 1000
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["validation"]
    assert not seen["test"] & seen["validation"]


def test_demonstrations_show_the_right_path_or_a_blind_arm() -> None:
    right = star()
    assert right.demonstration(2, 0.0) == (right.row(2).prompt, right.row(2).columns["solution"])
    blind = star(degree=5, random_arm=0.5)
    prompt, path = blind.demonstration(2, 0.5)
    assert path == blind.row(2).columns["solution"]
    shown = {blind.demonstration(2, draw)[1] for draw in (0.05, 0.15, 0.25, 0.35, 0.45)}
    edges, start, _ = parse(prompt)
    assert len(shown) == 5
    assert path in shown
    for text in shown:
        nodes = [int(node) for node in text.split(",")]
        assert nodes[0] == start
        assert set(pairwise(nodes)) <= set(edges)
