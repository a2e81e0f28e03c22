"""What completion offers for a word, and that real shells ask for it as they should."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer

from pipeline.__main__ import app
from pipeline.commands.completion import candidates, settings
from pipeline.commands.completion_scripts import SCRIPTS, Shell
from tests.doubles.runs import WrittenRun, chain_plan
from tests.doubles.sweeps import searched

PROGRAM = typer.main.get_command(app)


def offered(*words: str) -> list[str]:
    return candidates(PROGRAM, words)


def test_commands_and_options_are_offered() -> None:
    assert offered("st") == ["status", "store"]
    assert offered("sweep", "st")[0] == "status"
    assert "complete" not in offered("")
    assert offered("store", "") == ["du", "gc", "verify"]
    assert offered("gpus", "--w") == ["--watch"]
    assert offered("gpus", "fit", "--lora") == ["--lora-rank"]
    assert offered("completion", "f") == ["fish"]
    assert offered("nonsense", "x") == []


def test_keys_are_offered_part_by_part_and_then_their_values() -> None:
    assert {"algos=", "algos.", "training.", "profile=", "rounds_of_training="} < set(offered("run", ""))
    assert settings("training.sch") == ["training.schedule="]
    assert settings("algos.PITA.e") == ["algos.PITA.enabled=", "algos.PITA.epochs=", "algos.PITA.eta="]
    constant = ["training.schedule=constant", "training.schedule=constant_with_warmup"]
    assert settings("training.schedule=cons") == constant
    assert settings("+dry_run=t") == ["+dry_run=true"]
    assert settings("profile=a100") == ["profile=a100_40gb", "profile=a100_80gb"]
    assert settings("--num") == ["--num-gpus"]
    assert settings("training.grad_clip=") == settings("nonsense.key=") == settings("zz") == []


def test_of_a_list_the_choices_are_offered_that_it_has_not() -> None:
    assert settings("algos=[PI") == ["algos=[PITA"]
    assert settings("algos=[PITA,QSharp-HF,Q") == ["algos=[PITA,QSharp-HF,QSharp"]


def test_keys_are_offered_to_who_asks_what_they_mean() -> None:
    assert offered("help", "training.grad") == ["training.grad_clip", "training.gradient_checkpointing"]


def test_experiments_are_offered(tmp_path: Path) -> None:
    (tmp_path / "first_run/latest").mkdir(parents=True)
    for command in ("status", "show", "logs", "why"):
        assert offered(command, "--output-dir", str(tmp_path), "fi") == ["first_run"]
    assert offered("status", "--output-dir", str(tmp_path), "first_run", "") == []
    assert (
        offered("logs", "--output-dir", str(tmp_path), "first_run", "") == []
    )  # a run without a plan has no jobs
    assert offered("status", "--output-dir", str(tmp_path / "none"), "fi") == []


def test_sweeps_and_their_trials_are_offered(tmp_path: Path) -> None:
    searched(tmp_path, 3)
    (tmp_path / "first_run/latest").mkdir(parents=True)
    place = ("--output-dir", str(tmp_path))
    for command in ("status", "best", "logs", "report"):
        assert offered("sweep", command, *place, "") == ["lr"]
    assert offered("sweep", "logs", *place, "lr", "") == ["0", "1", "2"]
    assert offered("sweep", "logs", *place, "none", "") == offered("sweep", "best", *place, "lr", "") == []
    assert offered("sweep", "run", "al") == [], "the first word is a file"
    assert "algos=" in offered("sweep", "run", "lr.yaml", "al")


def test_ends_of_jobs_are_offered_that_name_one_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    WrittenRun(tmp_path / "outputs", chain_plan(rounds=2), name="first_run")
    monkeypatch.chdir(tmp_path)
    found = offered("logs", "first_run", "X/r1/")
    assert "X/r1/train" in found
    assert all(job.startswith("X/r1/") for job in found)
    assert offered("logs", "first_run", "r1/tr") == ["r1/train"]
    assert offered("logs", "first_run", "tr") == []
    assert offered("why", "first_run", "X/r1/train", "algos.PITA.et") == ["algos.PITA.eta"]
    assert settings("experiment.name=fi") == ["experiment.name=first_run"]


def test_experiments_of_a_run_are_those_of_its_output_dir(tmp_path: Path) -> None:
    (tmp_path / "first_run/latest").mkdir(parents=True)
    for word in (f"output_dir={tmp_path}", f"output_dir='{tmp_path}'", f"'output_dir={tmp_path}'"):
        assert offered("run", "dry_run=true", word, "experiment.name=fi") == ["experiment.name=first_run"]
    assert offered("run", "output_dir=/nowhere", "experiment.name=fi") == []
    assert offered("status", f"--output-dir={tmp_path}", "fi") == ["first_run"]


def test_of_options_the_values_are_offered(tmp_path: Path) -> None:
    place = ("--output-dir", str(tmp_path))
    for second in (1, 2):
        WrittenRun(tmp_path, chain_plan(rounds=1), f"2026-01-02_10-00-0{second}", "first_run")
    assert offered("figures", "first_run", "--format", "") == ["pdf", "png", "svg"]
    assert offered("track", *place, "first_run", "--report-to", "t") == ["tensorboard", "trackio"]
    assert offered("figures", *place, "first_run", "--run", "") == ["2026-01-02_10-00-01", "2026-01-02_10-00-02"]
    assert offered("logs", *place, "--lines", "") == []
    assert settings("evaluation.split=") == ["evaluation.split=test", "evaluation.split=validation"]


def test_of_an_export_the_chains_that_train_are_offered(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, chain_plan(rounds=2), name="first_run")
    run.folder.config.write_text(
        "experiment: {name: x}\nalgos: {X: {class_path: tests.doubles.own_methods.RewardWeighted}}\n"
        "datasets: {d: {kind: addition}}\nmodels: {m: {kind: tiny}}\n"
    )
    assert offered("export", "--output-dir", str(tmp_path), "first_run", "d/") == ["d/m/s0/X"]
    assert offered("export", "--output-dir", str(tmp_path), "first_run", "d/m/s0/X", "") == []
    assert offered("export", "--output-dir", str(tmp_path), "first_run", "X") == ["X"]


BASH = """\
{script}
COMP_LINE={line}
COMP_POINT=${{#COMP_LINE}}
_pipeline "${{COMP_LINE%% *}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
FISH = "{script}\ncomplete -C {line}\n"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH on which `pipeline` and `python` answer as this process does, without its imports."""
    folder = tmp_path_factory.mktemp("bin")
    for name in ("pipeline", "python"):
        script = folder / name
        script.write_text("#!/bin/sh\nIFS='|'\nprintf 'asked=%s\\n' \"$*\"\n")
        script.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("pipeline st", "complete|--|st"),
        ("pipeline run training.gr", "complete|--|run|training.gr"),
        ("pipeline ", "complete|--|"),
        ("python -m pipeline gpus fi", "-m|pipeline|complete|--|gpus|fi"),
        ("python run_parallel.py a=1 b", "-m|pipeline|complete|--|run|a=1|b"),
        ("pipeline run 'algos=[PI", "complete|--|run|algos=[PI"),
        ('pipeline run experiment.name="fi', "complete|--|run|experiment.name=fi"),
    ],
)
@pytest.mark.parametrize("shell", [Shell.bash, Shell.fish], ids=lambda shell: shell.name)
def test_shells_ask_with_the_words_before_the_cursor(shell: Shell, line: str, asked: str, programs: str) -> None:
    check_asked(shell, line, asked, programs)


@pytest.mark.parametrize("place", ['output_dir="a b"', "output_dir=a\\ b", '"output_dir=a b"'])
def test_in_bash_a_space_within_quotes_ends_no_word(place: str, programs: str) -> None:
    asked = "-m|pipeline|complete|--|run|output_dir=a b|experiment.name=fi"
    check_asked(Shell.bash, f"python run_parallel.py {place} experiment.name=fi", asked, programs)


def check_asked(shell: Shell, line: str, asked: str, programs: str) -> None:
    if shutil.which(shell.name) is None:
        pytest.skip(f"{shell.name} is not installed")
    typed = shlex.quote(line) if shell is Shell.bash else repr(line)
    text = {Shell.bash: BASH, Shell.fish: FISH}[shell].format(script=SCRIPTS[shell], line=typed)
    environment = {**os.environ, "PATH": programs}
    done = subprocess.run([shell.name, "-c", text], capture_output=True, text=True, env=environment, timeout=60)
    assert f"asked={asked}" in done.stdout.splitlines(), done


def test_zsh_takes_its_script() -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    done = subprocess.run(["zsh", "-n", "-c", SCRIPTS[Shell.zsh]], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
