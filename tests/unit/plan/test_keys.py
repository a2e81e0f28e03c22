"""Keys change with what determines a result and with nothing else."""

from dataclasses import fields

import pytest

from pipeline.config.schema import Tracker, TrackingConfig, TrackingMode
from pipeline.plan.graph import ResultKeys, determining, result_key
from tests.doubles.composing import quick_config


def test_order_of_fields_does_not_matter() -> None:
    assert result_key({"a": 1, "b": [1, 2]}) == result_key({"b": [1, 2], "a": 1})


@pytest.mark.parametrize("others", [{}, {"algo": "A", "version": 1, "code": {}}, {"stage": "x"}], ids=str)
def test_a_key_is_the_same_whoever_makes_it(others: dict[str, object]) -> None:
    config = {"b": float("inf"), "a": ["ä", None]}
    keys = ResultKeys()
    for _ in range(2):
        assert keys.key(others, config) == result_key({**others, "config": config})


def test_a_key_is_a_plain_file_name() -> None:
    key = result_key({"eta": float("inf"), "text": "ä/.."})
    assert len(key) == 40
    assert key.isalnum()


def test_hints_are_left_out() -> None:
    config = quick_config(["experiment.name=t"])
    before = determining(config)
    config.algos["PITA"].num_workers = 7
    config.execution.workers = 5
    config.system.use_parallel_execution = False
    config.tracking = TrackingConfig(report_to=[*Tracker], project="p", mode=TrackingMode.online, samples=1)
    assert determining(config) == before
    assert not [field.name for field in fields(TrackingConfig) if field.metadata.get("affects_result", True)]
    config.algos["PITA"].batch_size += 1
    assert determining(config) != before


def test_an_option_at_its_default_leaves_keys_as_they_were() -> None:
    config = quick_config(["experiment.name=t"])
    assert "padding_free" not in determining(config)["training"]
    config.training.padding_free = True
    assert determining(config)["training"]["padding_free"] is True
