"""Bayesian search against random search: the learning rate and eta of PITA on addition.

    python benchmarks/sweeps.py                        # 2 searches, 3 seeds, 20 trials each; half an hour
    python benchmarks/sweeps.py --output-dir DIR       # goes on where it was, and prints what is there

Every trial is a run of this package that is judged by pass@1 on validation prompts. All share the reference, so a
trial costs seconds. Two of them run at the same time, so a search chooses without knowing the last one's result.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

import yaml
from rich.console import Console

from pipeline.sweeps.storage import Record, sweep_folder
from pipeline.terminal.columns import Column, FittedTable

METHODS = ("random", "bayes")
SEEDS = (0, 1, 2)
TRIALS = 20
AFTER = (5, 10, 20)
SETTINGS = {
    "algos": ["PITA"],
    "rounds_of_training": 1,
    "data_collection.prompts_per_round": 300,
    "evaluation.num_prompts": 300,
    "evaluation.bootstrap_samples": 20,
}


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, default=Path("outputs/sweep_benchmark"))
    output_dir: Path = parser.parse_args().output_dir
    output_dir.mkdir(parents=True, exist_ok=True)
    found = {(method, seed): _values(method, seed, output_dir) for seed in SEEDS for method in METHODS}
    headings = [*(f"best after {number}" for number in AFTER), f"mean of the last {TRIALS // 2}"]
    columns = [Column(heading="search"), *(Column(heading=each, right=True) for each in headings)]
    table = FittedTable(columns, title=f"pass@1 on validation prompts: seeds {SEEDS}, and their median")
    for method in METHODS:
        of = [found[method, seed] for seed in SEEDS]
        best = [_told([max(values[:number]) for values in of]) for number in AFTER]
        table.add_row(method, *best, _told([statistics.fmean(values[-(TRIALS // 2) :]) for values in of]))
    Console(width=120).print(table)


def _told(values: list[float]) -> str:
    return f"{' '.join(f'{value:.3f}' for value in values)}: {statistics.median(values):.3f}"


def _values(method: str, seed: int, output_dir: Path) -> list[float]:
    """The value of each trial, in the order in which they ended; those that failed are 0."""
    name = f"{method}-{seed}"
    file = output_dir / f"{name}.yaml"
    file.write_text(yaml.safe_dump(_file(method, seed), sort_keys=False))
    command = [sys.executable, "-m", "pipeline", "sweep", "run", str(file), "--agents", "2", "--device", "cpu"]
    subprocess.run([*command, "--output-dir", str(output_dir)], check=True, stdout=sys.stderr)
    trials = Record(sweep_folder(output_dir, name)).trials.values()
    ended = sorted(trials, key=lambda trial: trial.ended or 0.0)
    return [trial.value if trial.value is not None else 0.0 for trial in ended]


def _file(method: str, seed: int) -> dict[str, object]:
    return {
        "program": "run_parallel.py",
        "method": method,
        "metric": {"name": "pass@1", "goal": "maximize"},
        "run_cap": TRIALS,
        "parameters": {
            "algos.PITA.learning_rate": {"distribution": "log_uniform_values", "min": 1e-5, "max": 0.1},
            "algos.PITA.eta": {"distribution": "log_uniform_values", "min": 0.01, "max": 10.0},
            **{name: {"value": value} for name, value in SETTINGS.items()},
        },
        "pipeline": {"seed": seed},
    }


if __name__ == "__main__":
    main()
