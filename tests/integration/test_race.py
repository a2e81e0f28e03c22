"""A race whole: looks grow, a chain that is shown worse ends early, and kills change nothing that comes out."""

import json
import os
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from tests.doubles.small_runs import command, events, results, run, run_here, wait_for

RACER = "tests.doubles.racers.Racer"
SHARES = {"Good": 0.9, "Like": 0.88, "Poor": 0.3}
BASE = [
    "algos=[]",
    *(f"algos.{name}.class_path={RACER}" for name in SHARES),
    *(f"algos.{name}.options.share={share}" for name, share in SHARES.items()),
    "evaluation.num_prompts=100",
    "rounds_of_training=2",
    "execution.stop_grace_s=1",
    "device=cpu",
]
RACE = "experiment.race={metric: pass@1, alpha: 0.1, until: best}"
POOR = "addition/tiny/s0/Poor"


def say(*words: str, output: Path) -> str:
    done = CliRunner().invoke(app, [*words, "--output-dir", str(output)])
    assert done.exit_code == 0, done.output
    return done.output


def left_in(output: Path, name: str) -> Any:
    return json.loads((output / "t" / "latest" / name).read_text())


def keys_in(output: Path) -> dict[str, str]:
    return {job["id"]: job["key"] for job in left_in(output, "plan.json")["jobs"]}


def decided_of(standing: dict[str, Any]) -> dict[str, Any]:
    """What a race has decided, without estimates of time, which grow better."""
    return {**standing, "saved": {**standing["saved"], "seconds": 0}}


def decided(output: Path) -> dict[str, Any]:
    return decided_of(left_in(output, "race.json"))


def test_a_chain_that_is_shown_worse_ends_and_the_plain_command_has_the_same_bytes(tmp_path: Path) -> None:
    output, again = tmp_path / "outputs", tmp_path / "again"
    run_here(output, *BASE, RACE)
    standing = left_in(output, "race.json")
    assert standing["stopped"] == {POOR: 1}
    assert standing["racing"] == {}
    assert standing["looks"][POOR][0] < 100 == standing["looks"]["addition/tiny/s0/Good"][0]
    assert standing["saved"]["prompts"] > 100
    jobs = events(output, "JobFinished")
    assert f"{POOR}/r1/metrics" in jobs
    assert not [job for job in jobs if job.startswith(f"{POOR}/r2/evaluate")]
    assert set(events(output, "RequestAnswered", key="by")) == {"race"}
    assert not any(events(output, "RequestAnswered", key="reason"))
    rows = {(row["algo"], row["round"], row["metric"]): row for row in left_in(output, "results.json")["rows"]}
    assert rows["Poor", 1, "pass@1"]["n"] == standing["looks"][POOR][0]
    assert rows["Poor", 1, "pass@1/vs_reference"]["n"] == standing["looks"][POOR][0]
    assert ("Poor", 2, "pass@1") not in rows

    told = json.loads(say("status", "t", "--json", output=output))["race"]
    assert told == standing
    assert "race asked" not in say("status", "t", output=output)  # its decisions would hide what people asked
    refused = CliRunner().invoke(app, ["evaluate", "t", "--prompts", "100", "--output-dir", str(output)])
    assert refused.exit_code == 2, refused.output  # it cannot grow to what the race was spared
    say("show", "t", output=output)
    page = (output / "t" / "latest" / "report.html").read_text()
    assert '"better":"Good"' in page

    # Repeated, it decides alike and computes nothing.
    before = results(output)
    run_here(output, *BASE, RACE)
    assert events(output, "JobFinished") == []
    assert results(output) == before
    assert decided(output) == decided_of(standing)

    words = shlex.split(say("command", "t", output=output))
    typed = [word for word in words[2:] if not word.startswith(("experiment.name=", "output_dir="))]
    assert "experiment.race=null" in typed
    run_here(again, *[word for word in typed if "=" in word])
    assert keys_in(again) == keys_in(output)
    assert results(again) == before


def killed_at(decisions: int | None, output: Path, asked: list[str]) -> int:
    """Kill a run after this number of decisions, or let it end; return its exit code."""
    told = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process: Any = subprocess.Popen(command(output, *asked), cwd=output.parent, **told)
    journal = output / "t" / "latest" / "journal.jsonl"

    def is_there() -> bool:
        decided = journal.exists() and len(events(output, "RequestAnswered", key="by"))
        return process.poll() is not None or decided >= (decisions or 0)

    try:
        if decisions is not None:
            wait_for(is_there)
            os.kill(process.pid, signal.SIGKILL)
        said, _ = process.communicate(timeout=800)
        assert "Traceback" not in said
    finally:
        process.kill()
    return int(process.returncode)


def test_killed_at_any_moment_it_ends_alike(tmp_path: Path) -> None:
    output, calm = tmp_path / "outputs", tmp_path / "calm"
    asked = [*BASE, RACE, "algos.Poor.options.train_s=3", "execution.workers=2"]
    for moment in (1, 2, 4):
        killed_at(moment, output, asked)
    assert killed_at(None, output, asked) == 0
    run_here(calm, *[word for word in asked if not word.startswith("execution.workers")])
    assert decided(output)["stopped"] == {POOR: 1}
    assert decided(output) == decided(calm)
    assert results(output) == results(calm)


def test_a_race_that_its_budget_ends_has_a_table_of_its_last_whole_looks(tmp_path: Path) -> None:
    output = tmp_path / "outputs"
    # The reference alone counts FLOPs: 8.1e9 of training, and 1.5e8 for each shard of its evaluation.
    printed = run_here(output, *BASE, RACE, "experiment.budget={flops: 8.5e9}", code=3)
    assert "undecided" in printed
    standing = left_in(output, "race.json")
    assert set(standing["racing"].values()) == {1}
    rows = {
        (row["algo"], row["round"], row["metric"]): row["n"] for row in left_in(output, "results.json")["rows"]
    }
    seen = {number: rows[name, number, "pass@1"] for name, number in (("reference", 0), ("Good", 1))}
    assert seen == {0: 40, 1: 40}
    run_here(output, *BASE, RACE)
    assert decided(output)["racing"] == {}


def test_what_is_added_to_a_race_is_judged_on_prompts_that_nobody_had_seen_and_one_command_does_it_again(
    tmp_path: Path,
) -> None:
    output, again, plain = tmp_path / "outputs", tmp_path / "again", tmp_path / "plain"
    run_here(output, *BASE, RACE, "evaluation.num_prompts=200")
    before = decided(output)
    # The race is over; Good and Like have used all prompts, so nothing is claimed of what comes now.
    said = say("clone", "t", "Poor", "--as", "Late", "algos.Late.options.share=0.2", output=output)
    assert "Traceback" not in said
    late = decided(output)
    assert [text.split()[:2] for text in left_in(output, "origin.json")["added"]] == [["clone", "Poor"]]
    assert late["added"] == {"Late": 200}
    assert (late["pairs"], late["stopped"]) == (before["pairs"], before["stopped"])

    budget = "experiment.budget={flops: 8.5e9}"  # ends it after two looks, see above
    run_here(again, *BASE, RACE, "evaluation.num_prompts=200", budget, code=3)
    say("clone", "t", "Poor", "--as", "Late", "algos.Late.options.share=0.2", output=again)
    standing = decided(again)
    [seen] = standing["added"].values()
    own = [pair for pair in standing["pairs"] if "Late" in (pair["first"], pair["second"])]
    assert own
    assert {pair["since"] for pair in own} == {seen}
    assert seen < 100
    assert all(seen < look["prompts"] <= 200 for pair in own for look in pair["looks"])
    assert standing["stopped"] == {POOR: 1, f"{POOR[:-4]}Late": 1}
    assert [pair for pair in standing["pairs"] if pair not in own] == before["pairs"]

    # The command of the run, with its race, decides alike; the printed one, without it, has the same bytes.
    settings = json.loads((again / "t" / "latest" / "origin.json").read_text())["settings"]
    run_here(again, *[word for word in settings if not word.startswith(("experiment.name=", "output_dir="))])
    assert decided(again) == standing
    assert events(again, "JobFinished") == []
    words = shlex.split(say("command", "t", output=again))[2:]
    left_out = ("experiment.name", "output_", "experiment.budget")
    run_here(plain, *[word for word in words if "=" in word and not word.startswith(left_out)])
    assert keys_in(plain) == keys_in(again)
    assert results(plain) == results(again)


def test_rounds_and_chains_that_are_added_while_it_runs_are_computed_again_by_one_command(tmp_path: Path) -> None:
    output, plain = tmp_path / "outputs", tmp_path / "plain"
    asked = [*BASE, RACE, "evaluation.num_prompts=200", "execution.workers=2", "algos.Good.options.train_s=15"]
    told = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process: Any = subprocess.Popen(command(output, *asked), cwd=output.parent, **told)
    try:
        wait_for(lambda: (output / "t" / "latest" / "race.json").exists() and bool(decided(output)["stopped"]))
        before = decided(output)
        say("clone", "t", "Poor", "--as", "Late", "algos.Late.options.share=0.2", output=output)
        say("add", "t", "rounds_of_training=3", output=output)
        said, _ = process.communicate(timeout=800)
    finally:
        process.kill()
    assert "Traceback" not in said
    assert process.returncode == 0, said
    standing = decided(output)
    assert standing["racing"] == {}
    assert {pair["round"] for pair in standing["pairs"]} == {1, 2, 3}
    [seen] = standing["added"].values()
    assert 0 < seen <= 200

    def settled(found: dict[str, Any]) -> dict[tuple[Any, ...], str]:
        return {(pair["round"], pair["first"], pair["second"]): pair["better"] for pair in found["pairs"]}

    # What was shown before stays shown, though levels are shared with what was added.
    shown = {pair: better for pair, better in settled(before).items() if better}
    assert shown.items() <= settled(standing).items()
    words = shlex.split(say("command", "t", output=output))[2:]
    left_out = ("experiment.name", "output_", "execution.workers")
    run(plain, *[word for word in words if "=" in word and not word.startswith(left_out)])
    assert keys_in(plain) == keys_in(output)
    assert results(plain) == results(output)


@pytest.mark.parametrize("way", ["interrupted", "failed"])
def test_a_race_that_something_else_ends_has_that_table_too(way: str, tmp_path: Path) -> None:
    output = tmp_path / "outputs"
    # Two workers train for long; the third evaluates the reference meanwhile, on however slow a machine.
    asked = [*BASE, RACE, "execution.workers=3", "algos.Good.options.train_s=60", "algos.Like.options.train_s=60"]
    told = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    if way == "failed":
        asked = [*asked[:-2], "algos.Like.options.fails_in=2"]
    process: Any = subprocess.Popen(command(output, *asked), cwd=output.parent, **told)
    try:
        if way == "interrupted":
            is_there = (output / "t" / "latest" / "race.json").exists
            wait_for(lambda: is_there() and bool(decided(output)["stopped"]))
            of_reference = "s0/reference/evaluate"
            wait_for(lambda: sum(of_reference in job for job in events(output, "JobFinished")) == 100 // 20)
            process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=800)
    finally:
        process.kill()
    assert "Traceback" not in said
    assert process.returncode == (130 if way == "interrupted" else 1), said
    found = {(row["algo"], row["round"]) for row in left_in(output, "results.json")["rows"]}
    assert {("reference", 0), ("Good", 1), ("Like", 1), ("Poor", 1)} <= found, said
    assert decided(output)["racing"]
