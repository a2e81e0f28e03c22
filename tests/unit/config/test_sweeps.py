"""A sweep that would never be done, or that has nothing to do, is refused before anything is listed."""

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from pipeline import cli
from pipeline.commands.exits import WRONG_REQUEST
from pipeline.config.load import MOST_RUNS, check_sweep
from pipeline.errors import ConfigError


def check(*words: str) -> None:
    check_sweep(OverridesParser.create().parse_overrides(list(words)))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a=range(1,100000000)"], "It is a above all: a=range(1,100000000) (values of each: a 99,999,999)"),
        (["a=range(1,1e300)"], "a without end"),
        (["a=range(0,inf)"], "a without end"),
        (["a=range(1e30,0,-0.1)"], "a without end"),
        (["a=shuffle(range(1,100000000))"], "more than 10,000 runs"),
        (["a=1,2", "b=range(1,1001)", "c=range(0,1,0.1)"], "It is b above all"),
        (["a=range(5,1)"], "the sweep has no runs: a=range(5,1) stands for no value at all"),
        (["a=range(1,100000000)", "b=range(0,0)"], "the sweep has no runs: b=range(0,0)"),
    ],
)
def test_a_sweep_out_of_bounds_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(*words)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "words",
    [
        ["a=1", "b=1,2"],
        [f"a=range(0,{MOST_RUNS})"],
        ["a=range(0,100)", "b=range(0,100)"],
        ["a=range(1,1e300)", "a=1,2"],
        ["a=range(10,0,-1)", "b=interval(0,1)"],
        [],
    ],
)
def test_other_sweeps_are_left_to_hydra(words: list[str]) -> None:
    check(*words)


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        ("algos.PITA.eta=range(1,100000000)", "the sweep has more than 10,000 runs"),
        ("profile=glob(nothing*)", "the sweep has no runs: profile=glob(nothing*)"),
    ],
)
def test_the_command_refuses_it_at_once(
    sweep: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--multirun", "experiment.name=t", sweep]) == WRONG_REQUEST
    assert f"error: {said}" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())
