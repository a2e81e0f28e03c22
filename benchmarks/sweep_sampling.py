"""Distributions, grids and early stopping of sweeps, beside W&B's own package.

    python benchmarks/sweep_sampling.py                       # makes an environment with `sweeps` 0.3.0; needs pip
    python benchmarks/sweep_sampling.py --python PATH         # one that has it

Both are given the same shares of the probability for each distribution, and each draws as many values by itself;
both list the same grids and judge the same curves; and its validator reads what W&B would be given of the files in
tests/data/sweeps.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from pipeline.foreign import converted
from pipeline.sweeps.file import Hyperband, Sweep, made, nested, read_sweep, sweep_of
from pipeline.sweeps.online import wandb_config
from pipeline.sweeps.search import ask, most_trials, why_stop
from pipeline.sweeps.storage import Trial
from pipeline.terminal.columns import Column, FittedTable

POINTS = 2_000
GRIDS = 300
CURVES = 500
_HERE = Path(__file__).parent
_FILES = _HERE.parent / "tests" / "data" / "sweeps"
_READ = ("multi_gpu", "grid", "distributions", "deprecated")

GIVEN: Mapping[str, Mapping[str, Any]] = {
    "uniform": {"min": -1.5, "max": 4.0},
    "q_uniform": {"min": 3, "max": 40, "q": 5},
    "int_uniform": {"min": -3, "max": 9},
    "log_uniform": {"min": -3, "max": 2},
    "q_log_uniform": {"min": 0, "max": 6, "q": 0.5},
    "inv_log_uniform": {"min": 1, "max": 5},
    "log_uniform_values": {"min": 1e-5, "max": 0.1},
    "q_log_uniform_values": {"min": 1, "max": 900, "q": 8},
    "inv_log_uniform_values": {"min": 0.5, "max": 60},
    "normal": {"mu": 3, "sigma": 0.5},
    "q_normal": {"sigma": 9, "q": 2},
    "log_normal": {"mu": -1},
    "q_log_normal": {"mu": 2, "q": 0.25},
    "beta": {"a": 2, "b": 5},
    "q_beta": {"a": 0.5, "b": 0.5, "q": 0.1},
    "categorical": {"values": [0.1, 1, 5, 20]},
    "categorical_w_probabilities": {"values": [1, 2, 4, 8], "probabilities": [0.1, 0.0, 0.6, 0.3]},
    "constant": {"value": 7},
}


def main() -> None:
    """Ask W&B's package, and print how far its answers are ours."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, help="an interpreter that has `sweeps`")
    python = parser.parse_args().python
    questions = _questions()
    with tempfile.TemporaryDirectory() as folder:
        answers = _ask(python or _environment(Path(folder)), questions)
    Console(width=110).print(_table(questions, answers))
    _print_grids(questions["grids"], answers["grids"])
    _print_stops(questions["stops"], answers["stops"])
    for name, faults in answers["faults"].items():
        print(f"{name}.yaml as W&B is given it: {'; '.join(faults) or 'its validator finds nothing wrong'}")


def _environment(folder: Path) -> Path:
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "sweeps==0.3.0", "numpy<2"], check=True)
    return python


def _ask(python: Path, questions: Mapping[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [python, "-P", "-W", "ignore", _HERE / "wandb_rules.py"],  # -P: `sweeps.py` beside it is another one
        input=json.dumps(questions),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _questions() -> dict[str, Any]:
    rng = random.Random(0)
    named = {kind: {"distribution": kind, **given} for kind, given in GIVEN.items()}
    shares = {kind: [rng.uniform(1e-9, 1 - 1e-9) for _ in range(POINTS)] for kind in GIVEN}
    return {
        "values": {kind: {"given": given, "shares": shares[kind]} for kind, given in named.items()},
        "draws": {"count": POINTS, "of": named},
        "grids": [_random_grid(rng) for _ in range(GRIDS)],
        "stops": [_random_curves(rng) for _ in range(CURVES)],
        "files": {name: wandb_config(read_sweep(_FILES / f"{name}.yaml")) for name in _READ},
    }


# -- distributions -----------------------------------------------------------------------------------------------


def _table(questions: Mapping[str, Any], answers: Mapping[str, Any]) -> FittedTable:
    headings = ("equal or within", "mean, sd of ours", "mean, sd of W&B's", "KS p")
    columns = [Column(heading="distribution"), *(Column(heading=each, right=True) for each in headings)]
    table = FittedTable(
        columns, title=f"{POINTS:,} points of each at the same shares, and {POINTS:,} draws of each"
    )
    for kind in GIVEN:
        asked = questions["values"][kind]
        parameter, theirs = made(("x",), asked["given"]), answers["values"][kind]
        distance = "as Optuna draws"
        if kind not in ("constant", "categorical", "int_uniform"):
            distance = _distance([parameter.at(each) for each in asked["shares"]], theirs)
        drawn = [each["x"] for each in _points(_sweep("random", {"x": asked["given"]}), POINTS)]
        table.add_row(kind, distance, *_moments(drawn, answers["draws"][kind]))
    return table


def _sweep(method: str, block: dict[str, Any]) -> Sweep:
    return sweep_of({"program": "p", "method": method, "parameters": block}, Path("s.yaml"))


def _points(sweep: Sweep, most: int) -> list[Mapping[str, Any]]:
    """Parameters of so many trials at most."""
    trials: list[Trial] = []
    while len(trials) < most and (choice := ask(sweep, trials)) is not None:
        trials.append(Trial(number=len(trials), parameters=choice.parameters))
    return [trial.parameters for trial in trials]


def _distance(ours: Sequence[float], theirs: Sequence[float]) -> str:
    if any(type(one) is not type(other) for one, other in zip(ours, theirs, strict=True)):
        return "other types"
    worst = max(abs(a - b) / max(abs(a), abs(b), 1e-300) for a, b in zip(ours, theirs, strict=True))
    return "equal" if worst == 0 else f"{worst:.0e}"


def _moments(ours: Sequence[float], theirs: Sequence[float]) -> tuple[str, str, str]:
    from scipy.stats import ks_2samp

    told = [f"{statistics.fmean(each):.4g}, {statistics.pstdev(each):.3g}" for each in (ours, theirs)]
    return told[0], told[1], f"{ks_2samp(ours, theirs).pvalue:.2f}"


# -- grids -------------------------------------------------------------------------------------------------------


def _random_grid(rng: random.Random) -> tuple[dict[str, Any], int]:
    names = rng.sample(["lr", "b", "B", "a", "a.x", "z_1"], rng.randint(1, 4))
    block = {name: _random_parameter(rng, 2) for name in names}
    return block, most_trials(_sweep("grid", block)) or 0


def _random_parameter(rng: random.Random, depth: int) -> dict[str, Any]:
    values = [1, 1.0, True, False, None, "a", "1", 0.5, [1, 2], {"k": 1}]
    low = rng.choice([-2, 0, 0.5, 3])
    q = rng.choice([1, 2, 0.1, 0.3])
    choices: list[dict[str, Any]] = [
        {"values": rng.choices(values, k=rng.randint(1, 4))},
        {"value": rng.choice(values)},
        {"min": 1, "max": rng.randint(2, 4)},
        {"distribution": "q_uniform", "min": low, "max": low + q * rng.randint(1, 4), "q": q},
    ]
    if depth:
        choices.append({"parameters": {name: _random_parameter(rng, depth - 1) for name in ("y", "x.1")}})
    return rng.choice(choices)


def _print_grids(asked: Sequence[tuple[dict[str, Any], int]], answers: Sequence[list[Any]]) -> None:
    equal = points = 0
    for (block, size), theirs in zip(asked, answers, strict=True):
        sweep = _sweep("grid", block)
        ours = [nested(sweep.parameters, point) for point in _points(sweep, size + 1)]
        equal += json.dumps([*ours, None], sort_keys=True) == json.dumps(theirs, sort_keys=True)
        points += size
    print(f"{equal} of {len(asked)} random grids ({points:,} points) are the same points in the same order")


# -- early stopping ----------------------------------------------------------------------------------------------


def _random_curves(rng: random.Random) -> tuple[dict[str, Any], dict[str, Any], list[list[float]]]:
    eta = rng.choice([2, 3, 1.5, 4])
    bands = {"min_iter": rng.randint(1, 3)} if rng.random() < 0.5 else {"max_iter": rng.randint(8, 30), "s": 3}
    rule = {"type": "hyperband", "eta": eta, "strict": rng.random() < 0.5, **bands}
    metric = {"name": "loss", "goal": rng.choice(["minimize", "maximize"])}
    curves = [[round(rng.gauss(0, 1), 1) for _ in range(rng.randint(0, 20))] for _ in range(rng.randint(1, 12))]
    return rule, metric, curves


def _print_stops(
    asked: Sequence[tuple[dict[str, Any], dict[str, Any], Any]], answers: Sequence[list[int]]
) -> None:
    equal = stopped = 0
    for (rule, metric, curves), theirs in zip(asked, answers, strict=True):
        ours = converted(rule, Hyperband)
        values = dict(enumerate(curves))
        told = [number for number in values if why_stop(ours, metric["goal"], number, values) is not None]
        equal += told == theirs
        stopped += len(told)
    print(f"{equal} of {len(asked)} random sets of curves are judged alike ({stopped:,} trials stopped)")


if __name__ == "__main__":
    main()
