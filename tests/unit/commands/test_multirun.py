"""Several runs by one command: exit codes, labels, Ctrl-C, and what trials are judged by."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from rich.console import Console

from pipeline import cli
from pipeline.commands import multirun, run
from pipeline.commands.multirun import for_hydra, read_flags, refuse_repeats
from pipeline.commands.results import OBJECTIVE, is_judged, values_of
from pipeline.commands.start import WRONG_REQUEST
from pipeline.config.checks import check_config
from pipeline.config.schema import Config, DeviceChoice, DistributedConfig
from pipeline.engine.devices.select import devices_of
from pipeline.errors import ConfigError, DeviceError, JobError
from pipeline.runs.record import ResultRow
from tests.doubles.composing import quick_config

Arguments = Callable[..., list[str]]


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Arguments:
    monkeypatch.chdir(tmp_path)
    base = ["--multirun", "experiment.name=t", "device=cpu", "algos=[PITA]", "rounds_of_training=1"]

    def given(*more: str) -> list[str]:
        own = {word.partition("=")[0] for word in more}
        return [*(word for word in base if word.partition("=")[0] not in own), *more]

    return given


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Experiment and label of every run that is carried out; seed n ends with exit code n, by a refusal if 2."""
    seen = []

    def run_experiment(config: Config, console: Console, label: str, **asked: Sequence[str]) -> int:
        seen.append((config.experiment.name, label))
        if config.experiment.seeds[0] == WRONG_REQUEST:
            raise JobError("not so")
        return config.experiment.seeds[0]

    monkeypatch.setattr(run, "run_experiment", run_experiment)
    return seen


def row(
    algo: str, metric: str, value: float | None, *, seed: int = 0, number: int = 1, reference: int = 0
) -> ResultRow:
    where = ("addition" if algo == "" else algo, "addition", "tiny", seed, number)
    return ResultRow(*where, metric, value, None, None, 9, reference=reference)


def test_a_failed_run_keeps_no_other_from_running_and_the_exit_code_is_the_highest(
    runs: list[Any], arguments: Arguments, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments("experiment.seeds=[2],[1]", "hydra.sweeper.max_batch_size=1")) == 2
    assert [label for _, label in runs] == [f"experiment.seeds=[{seed}]" for seed in (2, 1)]
    told = capsys.readouterr()
    assert [line for line in told.out.splitlines() if line] == [
        f"run experiment.seeds=[{seed}]" for seed in (2, 1)
    ]
    assert told.err.splitlines() == [  # in our words alone
        "error: not so",
        "error: the run experiment.seeds=[2] ended with exit code 2: not so",
        "error: the run experiment.seeds=[1] ended with exit code 1",
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["algos.PITA.eta=1,x", "rounds_of_training=1,-1"], ["algos.PITA.eta=x"]),
        (["training.micro_batch_size=range(1,4)", "bar=1", "fooo=1,2"], ["'bar'", "'fooo'"]),
        (
            ["training.grad_clip=interval(0,1)", "foo=1", "rounds_of_training=-1"],
            ["'foo'", "rounds_of_training=-1"],
        ),
    ],
)
def test_all_that_is_wrong_with_settings_of_several_runs_is_told(
    runs: list[Any], arguments: Arguments, capsys: pytest.CaptureFixture[str], words: list[str], told: list[str]
) -> None:
    assert cli.main(arguments(*words)) == WRONG_REQUEST
    said = capsys.readouterr().err
    assert [part for part in told if part not in said] == []
    assert len(told) == 1 or f"{len(told)} settings are wrong:" in said
    assert not runs


def test_an_interruption_ends_all_runs(runs: list[Any], arguments: Arguments) -> None:
    assert cli.main(arguments("experiment.seeds=[143],[0]")) == 143
    assert len(runs) == 1


def test_each_run_is_labelled_by_what_is_its_own_and_knows_how_it_is_repeated_and_which_others_belong_to_it(
    arguments: Arguments, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[tuple[str, list[str], str, str]] = []

    def run_experiment(config: Config, console: Console, command: list[str], label: str, **asked: object) -> int:
        seen.append((config.experiment.name, command[-2:], multirun.group_of_run(), label))
        return 0

    monkeypatch.setattr(run, "run_experiment", run_experiment)
    own = tmp_path / "own groups"
    own.mkdir()
    sweep = ["experiment.name=eta_${algos.PITA.eta}", "algos.PITA.eta=0.5,2.0", "algos.PITA.top_k=4"]
    assert cli.main(arguments(*sweep)) == 0
    assert [name for name, _, _, _ in seen] == ["eta_0.5", "eta_2.0"]
    assert [words for _, words, _, _ in seen] == [[f"algos.PITA.eta={eta}", sweep[-1]] for eta in (0.5, 2.0)]
    assert [label for _, _, _, label in seen] == ["algos.PITA.eta=0.5", "algos.PITA.eta=2.0"]
    (group,) = {group for _, _, group, _ in seen}
    assert group
    assert cli.main(arguments("--config-dir", str(own))[1:]) == 0
    assert seen[-1][1:] == (["--config-dir", str(own)], "", "")  # by itself it has neither a group nor a label


def test_a_failed_run_is_noted_where_it_arrives_from_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As launchers of clusters send what a run returns."""
    monkeypatch.setattr(multirun, "failed_runs", [])
    sent = cloudpickle.dumps(multirun.RunFailed(2, "a=1", "cannot import 'odd.one'"))
    multirun.failed_runs.clear()
    failed = cloudpickle.loads(sent)
    assert multirun.failed_runs == [failed]
    assert str(failed) == "the run a=1 ended with exit code 2: cannot import 'odd.one'"


def test_a_sweeper_that_would_choose_by_results_is_refused(
    runs: list[Any], arguments: Arguments, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(multirun, "_ONLY_LISTS", "some.Sweeper")
    assert cli.main(arguments("algos.PITA.eta=0.5")) == WRONG_REQUEST
    assert "docs/sweeps.md" in capsys.readouterr().err
    assert not runs


def test_a_trial_is_judged_by_the_chains_that_the_objective_names() -> None:
    config = quick_config(["experiment.name=t", "models.tiny.seeds=[0,3]"])
    for pattern, judged in (("*", [0, 3]), ("PITA", [0, 3]), ("*/ref3/s0/PITA", [3]), ("DPO", [])):
        asked = replace(config, evaluation=replace(config.evaluation, objective=pattern))
        rows = [row("PITA", "pass@1", 0.5, reference=reference) for reference in (0, 3)]
        assert [one.reference for one in rows if is_judged(asked, one)] == judged


@pytest.mark.parametrize(
    ("pattern", "judged"),
    [
        ("*", [("addition", "PITA")]),
        ("addition*", [("addition", "PITA")]),
        ("addition@two/*", [("addition@two", "PITA")]),
        ("addition@*/PITA", [("addition@two", "PITA")]),
        ("own", [("addition", "own")]),
        ("*@two/*/own", [("addition@two", "own")]),
    ],
)
def test_test_sets_and_checkpoints_change_no_objective_that_does_not_name_them(
    pattern: str, judged: list[tuple[str, str]]
) -> None:
    config = quick_config(["experiment.name=t"])
    asked = replace(config, evaluation=replace(config.evaluation, objective=pattern, also={"own": "/models/own"}))
    places = [(place, algo) for place in ("addition", "addition@two") for algo in ("PITA", "own")]
    rows = [replace(row(algo, "pass@1", 0.5), dataset=place) for place, algo in places]
    assert [(one.dataset, one.algo) for one in rows if is_judged(asked, one)] == judged
    without = replace(asked, evaluation=replace(asked.evaluation, on=["two"], on_own=False))
    on_two = [one for one in rows if one.dataset == "addition@two"]  # what there is then
    assert [one.algo for one in on_two if is_judged(without, one)] == [algo for _, algo in judged]


def test_the_objective_is_one_metric_that_all_chains_have() -> None:
    rows = [row("A", "pass@1", 0.2), row("B", "pass@1", None), row("A", "reward", 0.4), row("B", "reward", 0.8)]
    assert values_of(rows[:1])[OBJECTIVE] == 0.2
    assert values_of(rows)[OBJECTIVE] == pytest.approx(0.6)
    assert OBJECTIVE not in values_of([row("A", "length", 4.0)])


# -- test device flags -------------------------------------------------------------------------------------------
# Flags of a run: those for devices become settings that win, Hydra's stay, a wrong one is answered.


ALL = "device=auto distributed.num_gpus=null distributed.gpu_ids=null distributed.gpu_list=null"


@pytest.mark.parametrize(
    ("words", "ordered"),
    [
        ("", ""),
        ("--num-gpus 2", ALL.replace("gpus=null", "gpus=2")),
        ("--gpu-ids 0 2 3 a=1", f"a=1 {ALL.replace('ids=null', 'ids=[0,2,3]')}"),
        ("a=1 --gpu-ids 0,2", f"a=1 {ALL.replace('ids=null', 'ids=[0,2]')}"),
        ("distributed.gpu_list=4,5 a=1,2", "distributed.gpu_list=[4,5] a=1,2"),
        ("a=1 --cfg hydra --device cuda b=2", f"a=1 b=2 {ALL.replace('auto', 'cuda')} --cfg hydra"),
        ("a=1 --multirun b=1,2 c=3", "a=1 b=1,2 c=3 --multirun"),
        ("a=1 -cd D b=2 ~c", "a=1 b=2 ~c --config-dir D"),
        ("-p algos a=1 --cfg job b=1", "a=1 b=1 --cfg job --package algos --resolve"),
    ],
)
def test_flags_may_stand_anywhere(words: str, ordered: str) -> None:
    asked = read_flags(words.split())
    assert for_hydra(asked, asked.overrides) == ordered.split()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--num-gpus", "--num-gpus"),
        ("--gpu-ids a=1", "--gpu-ids"),
        ("--gpu-ids 0 x", "--gpu-ids 0 x"),
        ("--device tpu", "'auto', 'cpu', 'cuda'"),
        ("--seed 3", "experiment.seeds=..."),
        ("--num-gpu 2", "--num-gpus"),
        ("--multi-run", "--multirun"),
        ("--foo", "--num-gpus"),
        ("-x 3", "unknown flag -x"),
        ("--cfg nothing", "invalid choice: 'nothing'"),
    ],
)
def test_a_wrong_flag_is_answered_with_what_was_meant(words: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_flags(words.split())
    assert said in str(refused.value)
    assert "usage:" not in str(refused.value)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("experiment.name=x experiment.name=y", ["experiment.name", "'x'", "'y'"]),
        ("algos=[PITA] algos=[DPO]", ["algos is", "[PITA]", "[DPO]"]),
        ("a.b=1 +a.b=2 c=1 d=3 c=2", ["a.b", "c is"]),
        ("a=1,2 a=3", ["'1,2'", "'3'"]),
        ("a=1 a=1 ~b ~b b=2", []),
        ("distributed.num_gpus=1 --num-gpus 2", []),
    ],
)
def test_a_setting_is_given_once_and_a_flag_wins(words: str, named: list[str]) -> None:
    typed = read_flags(words.split()).typed
    if not named:
        refuse_repeats(typed)
        return
    with pytest.raises(ConfigError) as refused:
        refuse_repeats(typed)
    assert [word for word in named if word not in str(refused.value)] == []


def test_a_list_of_gpus_has_two_names() -> None:
    config = quick_config(read_flags(["experiment.name=a", "distributed.gpu_list=4,5,6,7"]).overrides)
    check_config(config)
    assert (config.distributed.ids, config.distributed.gpu_ids) == ([4, 5, 6, 7], None)
    config.distributed.gpu_ids = [0]
    with pytest.raises(ConfigError, match=r"gpu_ids=\[0\] and distributed.gpu_list=\[4, 5, 6, 7\] are two names"):
        check_config(config)
    with pytest.raises(DeviceError, match=r"distributed.gpu_list=\[9\]"):
        devices_of(DeviceChoice.auto, None, DistributedConfig(gpu_list=[9]))
