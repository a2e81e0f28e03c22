"""The sweep files that ship as examples are read, and what they set is understood by what they run."""

from pathlib import Path

import pytest

from examples.sweeps import fit
from pipeline.commands.sweep import check_settings
from pipeline.sweeps.command import trial_command
from pipeline.sweeps.file import read_sweep
from pipeline.sweeps.metrics import Curve
from pipeline.sweeps.reporting import VARIABLE
from pipeline.sweeps.search import ask
from pipeline.sweeps.storage import TrialFolder

ROOT = Path(__file__).parents[3]
FILES = ROOT / "examples/sweeps"


@pytest.mark.parametrize("name", sorted(path.name for path in FILES.glob("*.yaml")))
def test_a_sweep_of_the_examples_is_read_and_searched(name: str) -> None:
    sweep = read_sweep(FILES / name)
    assert (ROOT / sweep.program).is_file()
    check_settings(sweep)
    choice = ask(sweep, [])
    assert choice is not None
    assert set(choice.parameters) == set(sweep.parameters)
    assert f"examples/sweeps/{name}" in (ROOT / "docs/sweeps.md").read_text()
    assert (FILES / name).read_text().startswith(f"# python -m pipeline sweep run examples/sweeps/{name}")


def test_the_program_of_the_examples_takes_what_trials_are_given_and_logs_the_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = read_sweep(FILES / "fit.yaml")
    choice = ask(sweep, [])
    assert choice is not None
    given = choice.parameters
    words = trial_command(sweep, given, tmp_path / "parameters.json")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "metrics.jsonl"))
    fit.main(words[words.index("examples/sweeps/fit.py") + 1 :])
    values = Curve(TrialFolder(tmp_path), 1, sweep.metric).finite()
    assert len(values) == fit.STEPS
    assert values[-1] < values[0]
