"""Rewards on the command line: what works, and what is refused before anything starts."""

from pathlib import Path

import pytest

from pipeline.config.schema import DatasetConfig
from pipeline.errors import ConfigError
from pipeline.plan.build import build_plan
from tests.doubles.composing import quick_config


def dataset(*overrides: str) -> DatasetConfig:
    return quick_config(["experiment.name=t", *overrides]).datasets["addition"]


def check(*overrides: str) -> None:
    from pipeline.config.checks import check_config

    check_config(quick_config(["experiment.name=t", *overrides]))


def test_a_module_alone_is_no_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_judge.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"own_judge\.FUNCTION"):
        check("datasets.addition.reward=own_judge")


def test_how_fast_rewards_are_called_is_part_of_no_key() -> None:
    def keys(*overrides: str) -> list[str]:
        plan = build_plan(quick_config(["experiment.name=t", *overrides]))
        return [job.key for job in plan.jobs.values()]

    fast = ["processes=7", "start_timeout_s=1"]
    assert keys(*(f"datasets.addition.grading.{setting}" for setting in fast)) == keys()
    for setting in ("timeout_s=1", "memory_gib=1", "isolated=false", "options={exact_match:{}}"):
        assert keys(f"datasets.addition.grading.{setting}") != keys()
