"""Code outside of the package: the examples, and a user's own through the real engine, with spawned workers."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.config.user_code import source_hash
from pipeline.plan.build import build_plan
from tests.doubles import small_runs
from tests.doubles.composing import quick_config

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SMALL = [
    "models.tiny.steps=20",
    "models.tiny.batch_size=32",
    "rounds_of_training=2",
    "data_collection.prompts_per_round=20",
    "execution.shard_size=20",
    "evaluation.num_prompts=20",
    "evaluation.bootstrap_samples=50",
]
ALGORITHMS = [
    "algos.Fudge.class_path=examples.fudge.Fudge",
    "algos.GSPO.class_path=examples.gspo.GSPO",
    "algos.PassAtK.class_path=examples.pass_at_k.PassAtK",
    "algos.Taught.class_path=examples.taught.Taught",
]
DATASET = [
    "dataset=[]",
    "datasets.sorting.class_path=examples.sorting.Sorting",
    "datasets.sorting.digits=4",
    "datasets.sorting.test_size=500",
    "datasets.sorting.validation_size=500",
]
REWARD = ["datasets.sorting.rewards={examples.near_miss.near_miss: 1.0, exact_match: 0.5}"]
EVERYTHING = [
    "algos=[]",
    *ALGORITHMS,
    "algos.Fudge.success=0.6",
    "algos.Taught.options.column=solution",
    *DATASET,
    *REWARD,
    "datasets.sorting.grading.options={examples.near_miss.near_miss: {power: 2}}",
]


def run(folder: Path, *overrides: str, code: int = 0, main: Path = ROOT / "run_parallel.py") -> str:
    """The main command, started in a folder."""
    done = subprocess.run(
        [sys.executable, str(main), "experiment.name=t", "output_dir=outputs", *overrides],
        capture_output=True,
        text=True,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        timeout=800,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return done.stdout + done.stderr


def run_here(*overrides: str, code: int = 0) -> str:
    """The same in this process and its current folder; code of a user's own is forgotten afterwards."""
    asked = ["experiment.name=t", "output_dir=outputs", "device=cpu", "system.use_parallel_execution=false"]
    done = CliRunner().invoke(app, ["run", *asked, *overrides])
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]
    source_hash.cache_clear()
    assert done.exit_code == code, done.output
    return done.output


def started(folder: Path) -> list[str]:
    """Ids of the jobs that the last run has carried out, each as often as it was begun."""
    lines = (folder / "outputs" / "t" / "latest" / "journal.jsonl").read_text().splitlines()
    return [entry["job"] for entry in map(json.loads, lines) if entry["event"] == "JobStarted"]


def test_the_examples_give_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    run_here(*SMALL, *EVERYTHING)
    rows = json.loads((tmp_path / "outputs" / "t" / "latest" / "results.json").read_bytes())["rows"]
    found = {(row["algo"], row["round"], row["metric"]): row["value"] for row in rows}
    chains = {(algo, number) for algo in ("Fudge", "GSPO", "PassAtK", "Taught") for number in (1, 2)}
    assert {(row["algo"], row["round"]) for row in rows if row["round"]} == chains
    for chain in chains | {("reference", 0)}:
        assert 0 <= found[*chain, "pass@1"] <= 1
        assert 0 <= found[*chain, "rewards/examples.near_miss.near_miss"] <= 1
        assert found[*chain, "reward_errors"] == 0
    assert all(found[algo, 2, "kl_per_sequence"] > 0 for algo in ("Fudge", "GSPO", "PassAtK"))
    assert found["Taught", 2, "kl_per_sequence"] > found["Taught", 1, "kl_per_sequence"] > 0
    assert {row["dataset"] for row in rows} == {"sorting"}


def test_the_commands_of_the_pages_can_be_planned() -> None:
    """Every command that names an example, as it is written there; what differs by its name alone only once."""
    commands: dict[tuple[str, ...], str] = {}
    for page in (EXAMPLES / "README.md", ROOT / "docs" / "extending.md"):
        found = [
            line.strip().removeprefix("python run_parallel.py ")
            for line in page.read_text().replace("\\\n", " ").splitlines()
            if line.startswith("    python run_parallel.py ") and "examples." in line
        ]
        assert found
        for command in found:
            shell = f"printf '%s\\0' {command}"
            words = subprocess.check_output(["bash", "-c", shell], text=True, cwd=ROOT).split("\0")[:-1]
            commands[tuple(word for word in words if not word.startswith("experiment.name="))] = command
    for asked, command in commands.items():
        assert build_plan(quick_config(["experiment.name=x", *asked])).jobs, command


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A user's folder with a package of their own, far from the engine."""
    (tmp_path / "my_package").mkdir()
    shutil.copy(ROOT / "tests" / "doubles" / "counted.py", tmp_path / "my_package" / "my_module.py")
    return tmp_path


@pytest.fixture
def light(own: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with the reference stored: all that is left to run are the user's own stages, without torch."""
    small_runs.with_reference(tmp_path_factory, own / "outputs")
    return own


MINE = [
    *small_runs.SMALL,
    "algos=[]",
    "algos.Mine.class_path=my_package.my_module.Counted",
    "rounds_of_training=1",
]


EDITS_FIRST = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from pipeline import cli
from pipeline.commands import run as carry_out
run_jobs = carry_out.run_jobs
def edit_first(*args, **kwargs):
    file = Path('my_package/my_module.py')
    file.write_text(file.read_text() + 'Counted.edited = True\\n')
    return run_jobs(*args, **kwargs)
carry_out.run_jobs = edit_first
if __name__ == '__main__':
    sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_module_of_the_current_folder_is_found_by_workers_and_runs_again_when_edited(
    light: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edited during a run it says so: the engine has planned with one version; workers must not run another."""
    main = light / "main.py"
    main.write_text(EDITS_FIRST)
    printed = run(light, *MINE, "execution.workers=1", code=1, main=main)
    assert "my_module.py was changed after this run had begun" in printed
    assert [job for job in started(light) if "/Mine/" in job and "/count/" in job]

    monkeypatch.chdir(light)
    monkeypatch.syspath_prepend(str(light))
    run_here(*MINE)
    first = started(light)
    assert first
    assert all("/Mine/" in job for job in first)
    assert "0 to run" in run_here(*MINE, "dry_run=true")
    file = light / "my_package" / "my_module.py"
    file.write_text(file.read_text().replace('name: ClassVar[str] = "Counted"', 'name: ClassVar[str] = "Mine"'))
    run_here(*MINE)
    assert sorted(started(light)) == sorted(first)
