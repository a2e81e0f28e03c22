"""Existing pairs and completions are asked only of datasets that have them."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.values import refuse_all
from pipeline.errors import ConfigError
from pipeline.learning.datasets.from_files import FilesConfig
from pipeline.learning.rewards.probe import answer
from pipeline.plan.rewards import as_plain, check_pairs, row_problems
from tests.doubles.composing import quick_config

EXISTING = ["experiment.name=t", "algos=[DPO]", "algos.DPO.pairs=existing"]


def test_a_dataset_that_makes_rows_without_pairs_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"algos\.DPO\.pairs=existing: datasets\.addition has no pairs"):
        check_pairs(quick_config(EXISTING))


@pytest.mark.parametrize("pair", [{}, {"chosen": "b", "rejected": "c"}], ids=["without pairs", "with pairs"])
def test_files_without_pairs_are_refused_by_their_first_rows(tmp_path: Path, pair: dict[str, str]) -> None:
    lines = [json.dumps({"prompt": f"a{n}", "solution": "1", **pair}) + "\n" for n in range(30)]
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    config = quick_config(EXISTING)
    said = answer(as_plain({"mine": FilesConfig(kind="jsonl", path=str(tmp_path / "rows.jsonl"))}), ["mine"])
    assert list(said["unpaired"]) == ([] if pair else ["mine"])
    with nullcontext() if pair else pytest.raises(ConfigError, match=r"datasets\.mine has no pairs"):
        refuse_all(list(row_problems(config, said)))


def test_completions_with_labels_are_enough_for_kto_alone() -> None:
    labelled = {"unpaired": {"mine": ["prompt", "label"]}, "unanswered": {}, "texts": []}
    kto = quick_config(["experiment.name=t", "algos=[KTO]", "algos.KTO.pairs=existing"])
    assert not list(row_problems(kto, labelled))
    (said,) = row_problems(quick_config([*EXISTING, "algos=[KTO,DPO]", "algos.KTO.pairs=existing"]), labelled)
    assert said.startswith("algos.DPO.pairs=existing: datasets.mine has no pairs")
    with pytest.raises(ConfigError, match="or completion and label, but have"):
        check_pairs(quick_config(["experiment.name=t", "algos=[KTO]", "algos.KTO.pairs=existing"]))


@pytest.mark.parametrize("label", [True, None, "yes"])
def test_labels_that_are_neither_true_nor_false_are_refused(tmp_path: Path, label: object) -> None:
    lines = [
        json.dumps({"prompt": f"a{n}", "completion": "b", "solution": "b", "label": label if n else True})
        for n in range(30)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    said = answer(as_plain({"mine": FilesConfig(kind="jsonl", path=str(tmp_path / "rows.jsonl"))}), ["mine"])
    config = quick_config(["experiment.name=t", "algos=[KTO]", "algos.KTO.pairs=existing"])
    with (
        nullcontext()
        if label is True
        else pytest.raises(ConfigError, match=r"label \(neither .* in 29 of 30 rows")
    ):
        refuse_all(list(row_problems(config, said)))


def test_completions_of_a_dataset_that_makes_none_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"algos\.SFT imitates .*: datasets\.addition: its rows have none"):
        check_pairs(quick_config(["experiment.name=t", "algos=[SFT]"]))


@pytest.mark.parametrize(
    ("rows", "unanswered"),
    [
        ([{"prompt": "a", "completion": "b"}, {"prompt": "c", "completion": None}], [5, 10]),
        ([{"prompt": "a", "completion": "b"}, {"prompt": "c", "completion": "d"}], None),
        ([{"instruction": "a", "output": "b"}], None),
        ([{"prompt": "a", "chosen": "b", "rejected": "d"}], None),
        ([{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}], None),
        ([{"messages": [{"role": "user", "content": "a"}]}], None),
        ([{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}], None),
    ],
    ids=["half", "all", "Alpaca", "pairs", "messages", "messages that end with a question", "ShareGPT"],
)
def test_files_with_rows_without_completions_are_refused(
    tmp_path: Path, rows: list[dict[str, Any]], unanswered: list[int] | None
) -> None:
    lines = [json.dumps({**rows[n % len(rows)], "solution": "1"}) + "\n" for n in range(10)]
    lines = [line.replace('"a"', f'"a{n}"').replace('"c"', f'"c{n}"') for n, line in enumerate(lines)]
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    mine = FilesConfig(kind="jsonl", path=str(tmp_path / "rows.jsonl"), test_size=1, validation_size=1)
    said = answer(as_plain({"mine": mine}), ["mine"])
    assert said["unanswered"] == ({} if unanswered is None else {"mine": unanswered})
    with (
        nullcontext()
        if unanswered is None
        else pytest.raises(ConfigError, match="5 of its first 10 rows have none")
    ):
        refuse_all(list(row_problems(quick_config(["experiment.name=t", "algos=[SFT]"]), said)))
    turns = quick_config(["experiment.name=t", "algos=[SFT]", "algos.SFT.assistant_only_loss=true"])
    assert bool(said["texts"]) != bool(said["conversations"])
    with pytest.raises(ConfigError, match="are text") if said["texts"] else nullcontext():
        refuse_all(list(row_problems(turns, {**said, "unanswered": {}})))
