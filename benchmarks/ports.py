"""Whether torchrun trials of two agents on one machine ever meet at the same port.

    python -m benchmarks.ports [--starts 200] [--at-once 1]

Two processes work on one sweep of so many trials, each on two CPU slots, so each is started by torchrun. A trial's
ranks connect to where they are told to meet. Counts trials that did not end well at their first attempt, and pairs
that ran at the same time with the same port. Beside it: how many such pairs the same starts would have
with a port that is fixed, as 12345, and on average with one drawn from 29500 to 30499 unseen, as scripts often do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from pipeline.sweeps.storage import Record, SweepFolder, sweep_folder

DRAWN_FROM, RANKS = 1000, 2
PROGRAM = """
import argparse, os, socket
import pipeline.sweeps
socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 10).close()
pipeline.sweeps.log(rank=int(os.environ["RANK"]), world=int(os.environ["WORLD_SIZE"]))
"""
SWEEP = """
program: program.py
method: grid
metric: {{name: world, goal: maximize}}
parameters:
  number: {{values: {numbers}}}
  num_gpus: {{value: 2}}
"""


class Use(NamedTuple):
    """A port while a trial had it; times in seconds since 1970."""

    began: float
    ended: float
    port: int


def overlapping(uses: list[Use]) -> list[tuple[Use, Use]]:
    """Pairs of trials that ran at the same time."""
    return [(a, b) for a, b in combinations(uses, 2) if a.began < b.ended and b.began < a.ended]


def work(folder: Path, starts: int, at_once: int) -> SweepFolder:
    """Have two agents work on the sweep."""
    (folder / "program.py").write_text(PROGRAM)
    (folder / "ports.yaml").write_text(SWEEP.format(numbers=list(range(starts))))
    words = [sys.executable, "-m", "pipeline", "sweep"]
    slots = ["--device", "cpu", "--agents", str(at_once), "--gpus-per-agent", "2"]
    sweep = sweep_folder(folder / "outputs", "ports")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    agents = []
    for command in (["run", "ports.yaml"], ["agent", "ports"]):
        log = (folder / f"{command[0]}.txt").open("w")
        agents.append(
            subprocess.Popen([*words, *command, *slots], cwd=folder, env=environment, stdout=log, stderr=log)
        )
        while not sweep.journal.exists() and agents[0].poll() is None:
            time.sleep(0.1)
    for agent in agents:
        agent.wait()
    return sweep


def uses_of(sweep: SweepFolder) -> tuple[list[Use], list[str]]:
    """The ports of all attempts, and what is wrong with trials."""
    uses, wrong = [], []
    for trial in Record(sweep).trials.values():
        if trial.state != "done" or trial.attempts != 1 or trial.value != RANKS:
            wrong.append(f"trial {trial.number}: {trial.state}, {trial.attempts} attempts, {trial.reason}")
        for attempt in range(1, trial.attempts + 1):
            told = json.loads(sweep.trial(trial.number).start(attempt).read_text())
            uses.append(Use(told["started"], told["ended"], told["port"]))
    return uses, wrong


def main() -> None:
    """Run, count, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--starts", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=1, help="Trials of each agent at the same time.")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        uses, wrong = uses_of(work(Path(place), asked.starts, asked.at_once))
    together = overlapping(uses)
    same = sum(a.port == b.port for a, b in together)
    print(f"{len(uses)} starts of {RANKS} ranks by two agents, {len(together)} pairs at the same time")
    print(f"here: {same} pairs with the same port, {len(wrong)} trials that did not end well at once")
    print("\n".join(wrong[:10]), end="\n" if wrong else "")
    print(f"one fixed port: {len(together)} pairs; one drawn from {DRAWN_FROM}: {len(together) / DRAWN_FROM:.2f}")


if __name__ == "__main__":
    main()
