"""The datasets that ship: their original files, or their ids, become the rows that rewards and reports expect."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pipeline.config.schema import DatasetConfig
from pipeline.config.tables import DATASETS
from pipeline.errors import ConfigError, DataError
from pipeline.learning.datasets.base import SPLITS, Row, load_dataset
from pipeline.learning.datasets.from_files import FilesConfig
from pipeline.learning.datasets.prepared import PreparedDataset, prepare
from pipeline.learning.datasets.shipped import (
    Addition,
    AdditionConfig,
    GSM8KConfig,
    IMDBConfig,
    MathConfig,
    StarGraph,
    StarGraphConfig,
    TLDRConfig,
)
from tests.doubles.composing import quick_config

DATA = Path(__file__).parents[3] / "data"


def rows_of(config: DatasetConfig, folder: Path) -> dict[str, list[Row]]:
    prepare(load_dataset(config), folder)
    dataset = PreparedDataset(folder)
    return {split: [dataset.row(i) for i in sorted(dataset.ids(split).tolist())] for split in SPLITS}


def test_a_note_on_the_source_that_ships_is_not_told_of_other_rows() -> None:
    ships = load_dataset(GSM8KConfig(kind="gsm8k"))
    assert "official test split" in ships.note_of("test")
    assert ships.note_of("validation") == ""
    for other in ({"path": str(DATA / "gsm8k")}, {"test_split": "train"}, {"subset": "socratic"}):
        assert load_dataset(GSM8KConfig(kind="gsm8k", **other)).note_of("test") == ""
    assert load_dataset(AdditionConfig(kind="addition")).note_of("validation") == Addition.note


def test_math_is_tested_on_math_500_and_never_trained_on_it(tmp_path: Path) -> None:
    config = MathConfig(
        kind="math", path=str(DATA / "math"), test_path=str(DATA / "math_500"), prompt_template=None
    )
    rows = rows_of(config, tmp_path)
    assert [row.prompt for row in rows["test"]] == ["What is $1 + 1$?", "Solve $2x = 6$."]
    assert rows["test"][0].columns == {
        "solution": "It is $\\boxed{2}$.",
        "answer": "2",
        "level": 1,
        "subject": "Prealgebra",
    }
    others = {str(row.prompt): row for split in ("train", "validation") for row in rows[split]}
    assert sorted(others) == [
        "Factor $x^2 - 1$.",
        "How many degrees has a right angle?",
        "What is half of $\\frac{2}{3}$?",
    ]
    assert others["What is half of $\\frac{2}{3}$?"].columns["answer"] == "\\frac{1}{3}"
    right_angle = others["How many degrees has a right angle?"].columns
    assert (right_angle["answer"], right_angle["level"], right_angle["subject"]) == ("90", None, "Geometry")


@pytest.mark.parametrize(
    ("config", "row", "said"),
    [
        (GSM8KConfig(kind="gsm8k"), '{"problem": "a"}', r":1: no column 'question'; the columns are problem"),
        (GSM8KConfig(kind="gsm8k"), '{"question": "a", "answer": "42"}', r":1: the answer must end with '#### "),
        (MathConfig(kind="math", test_path=None), '{"problem": "a", "solution": "b"}', r":1: .* no final answer"),
        (IMDBConfig(kind="imdb_sentiment"), '{"text": "a", "label": -1}', r":1: label -1 is none of 0, neg,"),
        (TLDRConfig(kind="tldr"), '{"prompt": "a", "chosen": "b"}', r":1: no column 'rejected'"),
    ],
    ids=lambda value: value.kind if isinstance(value, DatasetConfig) else "",
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, config: FilesConfig, row: str, said: str) -> None:
    (tmp_path / "train.jsonl").write_text(row + "\n")
    config.path = str(tmp_path / "train.jsonl")
    with pytest.raises(DataError, match=said):
        prepare(load_dataset(config), tmp_path / "out")


@pytest.mark.parametrize("kind", sorted(DATASETS))
def test_every_kind_can_be_chosen_by_name(kind: str) -> None:
    config = quick_config(["experiment.name=t", f"dataset={kind}"]).datasets[kind]
    assert config.kind == kind
    if isinstance(config, FilesConfig) and config.path is None:
        with pytest.raises(ConfigError, match="path is missing"):
            load_dataset(config)
        config.path = "somewhere"
    assert load_dataset(config).config is config


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


@pytest.mark.parametrize("seed", [0, 7])
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


@pytest.mark.parametrize(("degree", "length"), [(2, 5), (3, 8)])
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
