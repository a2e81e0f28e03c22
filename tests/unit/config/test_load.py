"""Configuration: what a user may write, and that it reaches a worker unchanged."""

import json

import pytest

from pipeline.config.load import config_from_plain, load_config
from pipeline.config.plain import schema_path, stage_config_from_plain, to_plain
from pipeline.config.schema import Attention, Backend
from pipeline.learning.algos.qsharp import QSharpConfig
from pipeline.learning.algos.value_guided import PITAConfig
from pipeline.learning.models.kinds import TinyModelConfig
from tests.doubles.composing import quick_config

NAME = "experiment.name=t"


def test_a_round_trip_through_plain_data_changes_nothing() -> None:
    """For every file of every group the check of a machine tries it, and `test_check` that check."""
    config = quick_config([NAME, "algos=[QSharp-HF,DPO]", "algos.DPO.lora.rank=4", "evaluation.etas=[0.1,inf]"])
    wire = json.loads(json.dumps(to_plain(config)))
    assert config_from_plain(wire) == config


def test_defaults_are_typed() -> None:
    config = load_config([NAME])
    assert isinstance(config.algos["PITA"], PITAConfig)
    assert isinstance(config.algos["QSharp"], QSharpConfig)
    assert isinstance(config.models["tiny"], TinyModelConfig)
    assert config.system.attn_impl is Attention.sdpa
    assert config.execution.backend is Backend.local


def test_a_request_leaves_nothing_to_the_next() -> None:
    first = load_config([NAME])
    own = ["algos.Mine.class_path=examples.fudge.Fudge", "algos.PITA.eta=7", "datasets.addition.digits=2"]
    changed = load_config([NAME, *own, "+algos.PITA.options.a=1", "models.tiny.n_layer=3"])
    changed.algos["PITA"].options["b"] = changed.evaluation.etas.append(3.0)
    assert changed != first
    assert load_config([NAME]) == first


@pytest.mark.parametrize(
    ("profile", "pita_batch", "micro_batch", "checkpointing"),
    [("a100_40gb", 16, 2, True), ("a100_80gb", 32, 4, False)],
)
def test_gpu_profiles_set_the_published_values(
    profile: str, pita_batch: int, micro_batch: int, checkpointing: bool
) -> None:
    config = load_config([NAME, f"profile={profile}"])
    assert config.algos["PITA"].batch_size == pita_batch
    assert config.algos["PITA"].num_workers == 4
    assert config.training.micro_batch_size == micro_batch
    assert config.training.gradient_checkpointing is checkpointing
    assert config.data_collection.reward_batch_size == 32
    assert [name for name, algo in config.algos.items() if algo.enabled] == ["PITA", "QSharp"]


def test_a_stage_sees_only_the_sections_it_declared() -> None:
    config = quick_config([NAME])
    plain = {
        "training": to_plain(config.training),
        "algo": {"_schema_": schema_path(config.algos["PITA"]), **to_plain(config.algos["PITA"])},
    }
    rebuilt = stage_config_from_plain(json.loads(json.dumps(plain)))
    assert rebuilt.training == config.training
    assert rebuilt.algo == config.algos["PITA"]
    with pytest.raises(AttributeError):
        _ = rebuilt.evaluation
