"""Keys change with what determines a result and with nothing else."""

from dataclasses import fields

from pipeline.config.load import load_config
from pipeline.config.tracking import Tracker, TrackingConfig, TrackingMode
from pipeline.plan.keys import determining, result_key


def test_order_of_fields_does_not_matter() -> None:
    assert result_key({"a": 1, "b": [1, 2]}) == result_key({"b": [1, 2], "a": 1})


def test_a_key_is_a_plain_file_name() -> None:
    key = result_key({"eta": float("inf"), "text": "ä/.."})
    assert len(key) == 40
    assert key.isalnum()


def test_hints_are_left_out() -> None:
    config = load_config(["experiment.name=t"])
    before = determining(config)
    config.algos["PITA"].num_workers = 7
    config.execution.workers = 5
    config.system.use_parallel_execution = False
    config.tracking = TrackingConfig(report_to=[*Tracker], project="p", mode=TrackingMode.online, samples=1)
    assert determining(config) == before
    assert not [field.name for field in fields(TrackingConfig) if field.metadata.get("affects_result", True)]
    config.algos["PITA"].batch_size += 1
    assert determining(config) != before
