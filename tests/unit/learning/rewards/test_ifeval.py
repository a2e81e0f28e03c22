"""IFEval: rows in the form of its repository, judged as by hand and as lm-evaluation-harness does."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config.checks import config_problems
from pipeline.learning.datasets.base import Row, load_dataset
from pipeline.learning.datasets.prepared import PreparedDataset, prepare
from pipeline.learning.rewards import ifeval
from pipeline.learning.rewards.scoring import Scorer
from tests.doubles.composing import quick_config

pytest.importorskip("lm_eval", reason="lm_eval is not installed: the extra lm-eval")
pytest.importorskip("langdetect", reason="langdetect is not installed: the extra lm-eval")

CASES: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parents[3] / "data/benchmarks/ifeval.jsonl").read_text().splitlines()
]


def rows_in(tmp_path: Path, cases: list[dict[str, Any]]) -> tuple[list[Row], Any]:
    """The rows of a copy of the repository as they are prepared, and the settings of the dataset."""
    (tmp_path / "data").mkdir()
    pq.write_table(
        pa.Table.from_pylist([each["row"] for each in cases]), tmp_path / "data/train-00000-of-00001.parquet"
    )
    words = ["experiment.name=t", "dataset=ifeval", "stage=prepare", f"datasets.ifeval.path={tmp_path / 'data'}"]
    config = quick_config(words).datasets["ifeval"]
    prepare(load_dataset(config), tmp_path / "out")
    dataset = PreparedDataset(tmp_path / "out")
    return [dataset.row(each) for each in sorted(dataset.ids("test").tolist())], config


def test_every_row_is_judged_as_by_hand_and_by_the_harness(tmp_path: Path) -> None:
    from lm_eval.tasks.ifeval.utils import process_results

    cases = CASES if ifeval._has_tokenizer() else CASES[:-1]
    rows, config = rows_in(tmp_path, cases)
    asked = [
        (row, text, followed)
        for case in cases
        for row in rows
        if row.prompt == case["row"]["prompt"]
        for text, followed in case["judged"]
    ]
    with Scorer(config) as scorer:
        found = scorer.score([row for row, *_ in asked], [text for _, text, _ in asked], [[0]] * len(asked))
    assert found.first_fault == ""
    assert found.values == pytest.approx([sum(followed) / len(followed) for *_, followed in asked])
    assert list(found.correct) == [all(followed) for *_, followed in asked]
    for row, text, followed in asked:
        theirs = process_results({**row.columns, "prompt": row.prompt}, [text.rpartition("</think>")[2]])
        assert theirs["inst_level_strict_acc"] == followed
        assert theirs["prompt_level_strict_acc"] == all(followed)


def test_without_data_of_nltk_rows_that_need_it_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ifeval, "_has_tokenizer", lambda: False)
    said = [ifeval._refuses(each["row"]) for each in CASES]
    assert not any(said[:-1])
    assert "punkt_tab" in said[-1]
    assert "two lists" in ifeval._refuses({"instruction_id_list": ["punctuation:no_comma"]})


NUMBER = "length_constraints:number_words"


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        (NUMBER, {}),
        (NUMBER, {"num_words": None, "relation": "at least"}),
        (NUMBER, {"num_words": 0, "relation": "at least"}),
        (NUMBER, {"num_words": -1, "relation": "at least"}),
        (NUMBER, {"num_words": 3, "relation": "roughly"}),
        (NUMBER, {"num_words": "3", "relation": "at least"}),
        (NUMBER, {"num_words": 3, "relation": "at least", "words": 3}),
        (NUMBER, None),
        ("keywords:existence", {"keywords": ["("]}),
        ("keywords:frequency", {"keyword": None, "relation": "at least", "frequency": 2}),
        ("keywords:letter_frequency", {"letter": "ab", "let_relation": "at least", "let_frequency": 2}),
        ("language:response_language", {"language": "xx"}),
        ("combination:repeat_prompt", {}),
        ("length:words", {}),
        (5, {}),
    ],
)
def test_rows_whose_settings_would_be_drawn_or_fail_are_refused(name: Any, kwargs: Any) -> None:
    fine = "punctuation:no_comma"
    assert ifeval._refuses({"instruction_id_list": [fine, name], "kwargs": [{}, kwargs]})


def test_rows_with_nulls_for_kwargs_of_other_instructions_are_taken() -> None:
    kwargs = {"num_words": 3, "relation": "at least", "keyword": None, "language": None}
    assert not ifeval._refuses({"instruction_id_list": [NUMBER], "kwargs": [kwargs]})


def test_other_characters_than_letters_are_counted_too() -> None:
    """IFEval asks for '#' and '!', for which the harness draws a letter."""
    named = ["keywords:letter_frequency"]
    kwargs = [{"letter": "#", "let_relation": "at least", "let_frequency": 2}]
    assert not ifeval._refuses({"instruction_id_list": named, "kwargs": kwargs})
    said = ifeval.ifeval(["so"] * 2, ["#a #b", "#a aaa"], [named] * 2, [kwargs] * 2)
    assert said == [1.0, 0.0]


def test_it_cannot_be_trained_on() -> None:
    (problem,) = config_problems(quick_config(["experiment.name=t", "dataset=ifeval"]))
    assert "datasets.ifeval is for evaluation alone" in problem
