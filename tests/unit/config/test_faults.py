"""All faults of a request are told at once, whichever part of it refuses first."""

from __future__ import annotations

import pytest

from pipeline.config.load import load_config
from pipeline.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["foo=1", "rounds_of_training=-1"], ["'foo'", "rounds_of_training=-1"]),
        (["algos.PITA.etta=2", "training.grad_clip=abc"], ["'algos.PITA.eta'", "training.grad_clip=abc"]),
        (["dataset=nope", "model=gpt2", "foo=1"], ["dataset 'nope'", "model 'gpt2'", "'foo'"]),
        (["algos.PITA.eta=x", "algos.QSharp.eta=y"], ["algos.PITA.eta=x", "algos.QSharp.eta=y"]),
        (["algos=[PITA,PITA]", "foo=1"], ["PITA twice", "'foo'"]),
        (["[a,b", "foo=1"], ["brackets", "'foo'"]),
        (["training.gpus_per_job=0", "evaluation.split=tset", "bar=1"], ["gpus_per_job=0", "'test'", "'bar'"]),
        (["foo=1", "foo=2", "rounds_of_training=x"], ["'foo'", "rounds_of_training=x"]),
    ],
)
def test_every_wrong_setting_has_its_message(words: list[str], told: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(["experiment.name=x", *words])
    said = str(caught.value)
    assert [part for part in told if part not in said] == []
    assert said.startswith(f"{len(told)} settings are wrong:")
    assert "experiment.name is missing" not in said


def test_a_right_setting_is_not_blamed_beside_a_wrong_one() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(["experiment.name=x", "foo=1", "rounds_of_training=1", "dataset=addition"])
    assert "settings are wrong" not in str(caught.value)
