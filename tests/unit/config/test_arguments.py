"""A flag that nobody knows is answered with what was probably meant."""

import pytest

from pipeline import cli
from pipeline.commands.multirun import FLAGS, as_overrides
from pipeline.commands.start import WRONG_REQUEST
from pipeline.config.explain import for_hydra, read_flags
from pipeline.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--seed 3", "experiment.seeds=..."),
        ("--seeds 1 2 experiment.name=x", "experiment.seeds=..."),
        ("--num-gpu 2", "--num-gpus"),
        ("--gpu 2", "--gpu-ids"),
        ("--workers=4", "execution.workers=..."),
        ("--dry-run", "dry_run=..."),
        ("--max_new_tokens 5", "generation.max_new_tokens=..."),
        ("--epochs 3", "algos.<NAME>.epochs=..."),
        ("--multi-run", "--multirun"),
        ("--use_vllm", "generation.backend=..."),
        ("--foo", "--num-gpus"),
        ("-x 3", "unknown flag -x"),
        ("--cfg nothing", "invalid choice: 'nothing'"),
        ("--cfg", "expected one argument"),
    ],
)
def test_a_wrong_flag_is_answered_with_what_was_meant(words: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_flags(as_overrides(words.split()), FLAGS)
    assert said in str(refused.value)
    assert "usage:" not in str(refused.value)


@pytest.mark.parametrize(
    ("words", "ordered"),
    [
        ("a=1 --multirun b=1,2 c=3", "a=1 b=1,2 c=3 --multirun"),
        ("a=1 -cd D b=2 ~c", "a=1 b=2 ~c --config-dir D"),
        ("-p algos a=1 --cfg job b=1", "a=1 b=1 --cfg job --package algos --resolve"),
        ("--info config a=1", "a=1 --info config"),
        ("-h", "--help"),
        ("", ""),
    ],
)
def test_settings_may_stand_on_both_sides_of_a_flag(words: str, ordered: str) -> None:
    asked = read_flags(words.split(), FLAGS)
    assert for_hydra(asked, asked.overrides) == ordered.split()


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
    assert len(err.splitlines()) == 1
    assert "experiment.seeds" in err
