"""What W&B's own package answers: run by `benchmarks/sweep_sampling.py` in an environment that has it.

    python benchmarks/wandb_rules.py < questions.json > answers.json

`sweeps` 0.3.0 needs numpy below 2, so it cannot be installed beside this package.
"""

import json
import random
import sys
from typing import Any

from sweeps import RunState, SweepRun, next_runs, stop_runs
from sweeps.config import schema_violations_from_proposed_config
from sweeps.params import HyperParameter


def main() -> None:
    """Answer everything that was asked."""
    asked = json.load(sys.stdin)
    answers = {
        "values": {name: _values(each["given"], each["shares"]) for name, each in asked["values"].items()},
        "draws": {name: _draws(given, asked["draws"]["count"]) for name, given in asked["draws"]["of"].items()},
        "grids": [_grid(block, count) for block, count in asked["grids"]],
        "stops": [_stops(rule, metric, curves) for rule, metric, curves in asked["stops"]],
        "faults": {name: schema_violations_from_proposed_config(file) for name, file in asked["files"].items()},
    }
    json.dump(answers, sys.stdout, default=_plain)


def _plain(value: Any) -> Any:
    """Numbers of numpy as Python's."""
    return value.item() if hasattr(value, "item") else value.tolist()


def _values(given: dict[str, Any], shares: list[float]) -> list[Any]:
    parameter = HyperParameter("x", given)
    return [_plain(value) if hasattr(value, "tolist") else value for value in map(parameter.ppf, shares)]


def _draws(given: dict[str, Any], count: int) -> list[Any]:
    random.seed(0)
    runs = next_runs({"method": "random", "parameters": {"x": given}}, [], n=count)
    return [run.config["x"]["value"] for run in runs]


def _grid(block: dict[str, Any], count: int) -> list[Any]:
    runs = next_runs({"method": "grid", "parameters": block}, [], n=count + 1)
    return [None if run is None else {name: each["value"] for name, each in run.config.items()} for run in runs]


def _stops(rule: dict[str, Any], metric: dict[str, Any], curves: list[list[float]]) -> list[int]:
    runs = [
        SweepRun(name=str(number), state=RunState.running, history=[{metric["name"]: value} for value in curve])
        for number, curve in enumerate(curves)
    ]
    config = {"method": "random", "metric": metric, "early_terminate": rule, "parameters": {"x": {"value": 1}}}
    return sorted(int(run.name) for run in stop_runs(config, runs))


if __name__ == "__main__":
    main()
