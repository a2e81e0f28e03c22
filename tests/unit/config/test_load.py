"""Configuration: what a user may write, and that it reaches a worker unchanged."""

import json
from pathlib import Path

import pytest

from pipeline import cli
from pipeline.config.checks import check_config
from pipeline.config.load import config_from_plain, load_config
from pipeline.config.plain import schema_path, stage_config_from_plain, to_plain
from pipeline.config.tables import conf_dir
from pipeline.errors import ConfigError
from tests.doubles.composing import quick_config

NAME = "experiment.name=t"
GROUPS = ("algos", "dataset", "model")


def test_a_round_trip_through_plain_data_changes_nothing() -> None:
    every = [
        f"{group}=[{','.join(path.stem for path in (conf_dir() / group).glob('*.yaml'))}]" for group in GROUPS
    ]
    config = quick_config([NAME, *every, "algos.DPO.lora.rank=4", "evaluation.etas=[0.1,inf]"])
    wire = json.loads(json.dumps(to_plain(config)))
    assert config_from_plain(wire) == config


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


def test_the_default_gives_way_to_what_is_held_out_and_a_number_that_was_given_does_not() -> None:
    few = ["experiment.name=t", "datasets.addition.test_size=50"]
    config = quick_config(few)
    check_config(config)
    assert config.evaluation.num_prompts == 50
    for given in ("evaluation.num_prompts=500", "++evaluation.num_prompts=51", "evaluation={num_prompts: 500}"):
        with pytest.raises(
            ConfigError, match=r"datasets\.addition\.test_size sets aside 50 prompts at most; ask for fewer"
        ):
            check_config(quick_config([*few, given]))
    asked = [*few, "evaluation.num_prompts=20"]
    assert quick_config(asked).evaluation.num_prompts == 20


def test_a_number_in_a_file_holds_where_it_is_the_default_too(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment" / "mine.yaml"
    given = ["experiment.name=t", "datasets.addition.test_size=50", "experiment=mine"]
    given.append(f"hydra.searchpath=[file://{tmp_path}]")
    file.write_text("# @package _global_\nevaluation:\n  num_prompts: 500\n")
    with pytest.raises(ConfigError, match=r"sets aside 50 prompts at most; ask for fewer"):
        check_config(load_config(given))
    file.write_text("# @package _global_\nevaluation:\n  split: test\n")
    assert load_config(given).evaluation.num_prompts == 50
    same = "rounds_of_training=${evaluation.num_prompts}"
    assert load_config(["experiment.name=t", same]).rounds_of_training == 500


def test_the_command_takes_settings_on_both_sides_of_a_flag(capfd: pytest.CaptureFixture[str]) -> None:
    own = ["algos.Mine.class_path=pipeline.learning.algos.value_guided.PITA", "algos.Mine.batch_size=7"]
    assert cli.main(["experiment.name=x", *own, "--cfg", "job", "rounds_of_training=7"]) == 0
    printed = capfd.readouterr().out
    assert "Mine:" in printed
    assert "rounds_of_training: 7" in printed
    assert "num_prompts: 500" in printed
    assert "${" not in printed
