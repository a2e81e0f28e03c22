"""The comparison with W&B's package asks that package, whatever lies beside the script that is run."""

import sys
from pathlib import Path

import pytest

from benchmarks import sweep_sampling

STAND_IN = {
    "__init__.py": "RunState = SweepRun = stop_runs = None\ndef next_runs(*_, n): return [None] * n\n",
    "params.py": "HyperParameter = None\n",
    "config/__init__.py": "def schema_violations_from_proposed_config(file): return [f'{file} is wrong']\n",
}


def test_wandbs_package_is_asked_and_not_the_benchmark_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in STAND_IN.items():
        path = tmp_path / "sweeps" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    nothing = {"values": {}, "draws": {"of": {}}, "stops": []}
    answers = sweep_sampling._ask(Path(sys.executable), {**nothing, "grids": [[{}, 1]], "files": {"a": 3}})
    assert (answers["grids"], answers["faults"]) == ([[None, None]], {"a": ["3 is wrong"]})
