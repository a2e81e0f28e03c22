"""Existing pairs are asked only of datasets that have them."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.learning.datasets.from_files import FilesConfig
from pipeline.learning.rewards.early import answer
from pipeline.plan.pairs import check_pairs, refuse_unpaired
from pipeline.plan.rewards import as_plain
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
        refuse_unpaired(config, said["unpaired"])


def test_pairs_that_are_sampled_or_read_are_not_looked_for() -> None:
    check_pairs(quick_config([*EXISTING, "algos.DPO.enabled=false", "algos=[DPO,PITA]"]))
    check_pairs(quick_config(["experiment.name=t", "algos=[DPO]"]))
    check_pairs(
        quick_config([*EXISTING, "dataset=jsonl", "datasets.jsonl.path=a.jsonl", "model=hf", "models.hf.path=m"])
    )
