"""On how many prompts policies are evaluated where nobody has said it."""

from pathlib import Path

import pytest

from pipeline.config.checks import check_config
from pipeline.config.load import fewer_than_usual, load_config
from pipeline.errors import ConfigError
from tests.doubles.composing import quick_config


def test_the_default_gives_way_to_what_is_held_out_and_a_number_that_was_given_does_not() -> None:
    few = ["experiment.name=t", "datasets.addition.test_size=50"]
    config = quick_config(few)
    check_config(config)
    assert config.evaluation.num_prompts == 50
    said = fewer_than_usual(config, few)
    assert said is not None
    assert said.startswith(
        "every policy is evaluated on 50 prompts at most, since datasets.addition.test_size asks"
    )
    for given in ("evaluation.num_prompts=500", "++evaluation.num_prompts=51", "evaluation={num_prompts: 500}"):
        with pytest.raises(
            ConfigError, match=r"datasets\.addition\.test_size sets aside 50 prompts at most; ask for fewer"
        ):
            check_config(quick_config([*few, given]))
    asked = [*few, "evaluation.num_prompts=20"]
    assert quick_config(asked).evaluation.num_prompts == 20
    assert fewer_than_usual(quick_config(asked), asked) is None


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


def test_it_is_the_split_in_question_that_counts() -> None:
    given = ["experiment.name=t", "datasets.addition.validation_size=40"]
    assert quick_config(given).evaluation.num_prompts == 500
    assert fewer_than_usual(quick_config(given), given) is None
    assert quick_config([*given, "evaluation.split=validation"]).evaluation.num_prompts == 40
