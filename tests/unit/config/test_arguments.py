"""A flag that nobody knows is answered with what was probably meant."""

import pytest

from pipeline import cli
from pipeline.commands.device_flags import FLAGS, as_overrides
from pipeline.commands.exits import WRONG_REQUEST
from pipeline.config.arguments import check_flags, settings_first
from pipeline.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("--seed 3", "experiment.seeds=[3]"),
        ("experiment.name=x --seed 3", "experiment.seeds=[3]"),
        ("--seeds 1 2 experiment.name=x", "experiment.seeds=[1,2]"),
        ("--num-gpu 2", "--num-gpus 2"),
        ("--gpu 2", "--gpu-ids 2"),
        ("--devices cpu", "--device cpu"),
        ("--workers=4", "execution.workers=4"),
        ("--rounds 3", "rounds_of_training=3"),
        ("--dry-run", "dry_run=true"),
        ("--name x", "experiment.name=x"),
        ("--experiment-name x", "experiment.name=x"),
        ("--max_new_tokens 5", "generation.max_new_tokens=5"),
        ("--epochs 3", "algos.<NAME>.epochs=3"),
        ("--multi-run", "--multirun"),
    ],
)
def test_a_wrong_flag_is_answered_with_what_was_meant(words: str, meant: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_flags(as_overrides(words.split()), FLAGS)
    assert str(refused.value).endswith(f"Did you mean {meant}?")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--foo", "unknown flag --foo. Settings are written KEY=VALUE; flags are --num-gpus,"),
        ("-x 3", "unknown flag -x"),
        ("---", "unknown flag ---"),
        ("--cfg nothing", "invalid choice: 'nothing'"),
        ("--cfg", "expected one argument"),
        ("--=3", "ambiguous option"),
    ],
)
def test_other_wrong_flags_get_one_message_too(words: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_flags(words.split(), FLAGS)
    assert said in str(refused.value)
    assert "usage:" not in str(refused.value)


@pytest.mark.parametrize(
    "words", ["", "a=1 --cfg job", "--cfg job a=1", "-m a=1,2", "-h", "--version", "--info config", "~a", "a b"]
)
def test_what_hydra_knows_is_left_to_it(words: str) -> None:
    check_flags(words.split(), FLAGS)


@pytest.mark.parametrize(
    ("words", "ordered"),
    [
        ("a=1 --multirun b=1,2 c=3", "a=1 b=1,2 c=3 --multirun"),
        ("a=1 --config-dir D b=2 ~c", "a=1 b=2 ~c --config-dir D"),
        ("-p algos a=1 --cfg job b=1", "a=1 b=1 -p algos --cfg job"),
        ("--info config a=1", "a=1 --info config"),
        ("", ""),
    ],
)
def test_settings_may_stand_on_both_sides_of_a_flag(words: str, ordered: str) -> None:
    assert settings_first(words.split()) == ordered.split()


def test_the_command_takes_settings_on_both_sides_of_a_flag(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["experiment.name=x", "--cfg", "job", "rounds_of_training=7"]) == 0
    printed = capfd.readouterr().out
    assert "rounds_of_training: 7" in printed
    assert "num_prompts: 500" in printed
    assert "${" not in printed


def test_the_command_says_it_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["experiment.name=x", "--seed", "3"]) == WRONG_REQUEST
    out, err = capfd.readouterr()
    assert out == ""
    assert err.strip() == (
        "error: unknown flag --seed. Settings are written KEY=VALUE. Did you mean experiment.seeds=[3]?"
    )
