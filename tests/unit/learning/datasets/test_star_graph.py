"""Star graphs: every graph is what the papers describe, checked by reading the prompt alone."""

from collections import Counter
from itertools import pairwise

import pytest

from pipeline.config.schema import Config
from pipeline.learning.datasets.base import SPLITS
from pipeline.learning.datasets.made import StarGraph, StarGraphConfig


def star(**settings: object) -> StarGraph:
    small = {"test_size": 50, "validation_size": 50, "train_size": 200, **settings}
    return StarGraph(StarGraphConfig(kind="star_graph", **small))  # type: ignore[arg-type]


def parse(prompt: str) -> tuple[list[tuple[int, int]], int, int]:
    edges, _, ends = prompt.removesuffix("=").partition("/")
    start, goal = map(int, ends.split(","))
    return [(int(a), int(b)) for a, b in (edge.split(",") for edge in edges.split("|"))], start, goal


def simple_paths(edges: list[tuple[int, int]], start: int, goal: int) -> list[list[int]]:
    """Every path that visits no node twice, by trying all of them."""
    found, open_paths = [], [[start]]
    while open_paths:
        path = open_paths.pop()
        if path[-1] == goal:
            found.append(path)
        open_paths += [[*path, b] for a, b in edges if a == path[-1] and b not in path]
    return found


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
        # By every walk backwards too, the goal is reached in exactly length - 1 steps.
        paths = simple_paths(edges, start, goal)
        assert [",".join(map(str, path)) for path in paths] == [row.columns["solution"]]
        assert len(paths[0]) == length


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


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"degree": 7, "path_length": 9}, "G(7,9) has 57 nodes, but labels=50 names only 50; set k.labels=57"),
        ({"path_length": 3, "labels": 6}, "G(2,3) with k.labels=6 has too few graphs"),
        ({"path_length": 3, "labels": 8}, ""),
    ],
)
def test_graphs_of_which_there_are_none_or_too_few_are_refused(settings: dict[str, int], said: str) -> None:
    told = list(StarGraphConfig(kind="star_graph", **settings).problems("k", Config()))  # type: ignore[arg-type]
    assert len(told) == bool(said)
    assert said in "".join(told)


def test_the_tiny_tokenizer_takes_a_label_as_one_token() -> None:
    from pipeline.learning.models.tiny import make_tokenizer

    dataset = star(degree=3, path_length=4)
    tokenizer = make_tokenizer(dataset)
    for row_id in range(20):
        row = dataset.row(row_id)
        ids = tokenizer(row.columns["solution"])["input_ids"]
        assert len(ids) == 1 + dataset.completion_length
        assert tokenizer.decode(ids[1:]) == row.columns["solution"]
        assert len(tokenizer(row.prompt)["input_ids"]) == 1 + 4 * 9 - 1 + 5
