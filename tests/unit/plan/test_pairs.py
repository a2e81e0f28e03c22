"""Existing pairs are asked only of datasets that have them."""

import pytest

from pipeline.errors import ConfigError
from pipeline.plan.pairs import check_pairs
from tests.doubles.composing import quick_config

EXISTING = ["experiment.name=t", "algos=[DPO]", "algos.DPO.pairs=existing"]


def test_a_dataset_that_makes_rows_without_pairs_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"algos\.DPO\.pairs=existing: datasets\.addition has no pairs"):
        check_pairs(quick_config(EXISTING))


def test_pairs_that_are_sampled_or_read_are_not_looked_for() -> None:
    check_pairs(quick_config([*EXISTING, "algos.DPO.enabled=false", "algos=[DPO,PITA]"]))
    check_pairs(quick_config(["experiment.name=t", "algos=[DPO]"]))
    check_pairs(
        quick_config([*EXISTING, "dataset=jsonl", "datasets.jsonl.path=a.jsonl", "model=hf", "models.hf.path=m"])
    )
