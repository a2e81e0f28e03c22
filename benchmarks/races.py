"""Race six methods that are trained anew in each repeat, and compare the verdicts with the whole evaluation.

    python -m benchmarks.races outputs/races --repeats 20      # goes on where it was stopped; prints the table
    python -m benchmarks.races outputs/races --repeats 0       # the table of what has been run

A repeat has a seed of its own for the reference, the split of prompts and the experiment, and three commands as
a user types them, one after the other in one folder of outputs: a race until `best`, a race until `separated`, and
the run without a race, which evaluates the same policies on all prompts. What an earlier command has stored is not
computed again. A finished repeat is one line of `races.jsonl`; its outputs are removed.

The whole evaluation tells two policies apart if the test of the tables does, corrected over all pairs of a round
(Holm). Device seconds of `best` are of all that it started on an empty store; those of the others are what the
jobs of their plans took when they ran.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.engine.journal import JournalReader
from pipeline.engine.run_folder import RunFolder
from pipeline.learning.evaluation import statistics
from pipeline.plan.graph import Job
from pipeline.runs import racing
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.race import Standing, read_standing

ROOT = Path(__file__).parents[1]
METHODS = ("PITA", "QSharp", "DPO", "KTO", "GRPO", "RAFT")
PROMPTS, ROUNDS, ALPHA = 5000, 2, 0.05
SETTINGS = [
    f"algos=[{','.join(METHODS)}]",
    f"rounds_of_training={ROUNDS}",
    f"evaluation.num_prompts={PROMPTS}",
    "execution.shard_size=250",
    "execution.workers=1",
    "data_collection.prompts_per_round=500",
    "models.tiny.steps=400",
    "device=cpu",
]


def run(folder: Path, name: str, seed: int, until: str | None) -> LoadedRun:
    """Run the main command to its end."""
    race = "null" if until is None else f"{{metric: pass@1, alpha: {ALPHA}, until: {until}}}"
    seeds = [f"experiment.seeds=[{seed}]", f"models.tiny.seed={seed}", f"datasets.addition.seed={seed}"]
    words = [f"experiment.name={name}", f"output_dir={folder}", f"experiment.race={race}", *seeds, *SETTINGS]
    done = subprocess.run(
        [sys.executable, str(ROOT / "run_parallel.py"), *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{name} of seed {seed} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return LoadedRun(RunFolder((folder / name / "latest").resolve()))


def seconds_by_key(run: LoadedRun) -> Counter[str]:
    """Return the key of each job that this run started -> device seconds of its attempts."""
    began, took = dict[str, float](), Counter[str]()
    for event in JournalReader(run.folder.journal).new_events():
        if event["event"] == "JobStarted":
            began[event["job"]] = event["time"]
        elif (name := str(event.get("job", ""))) in began:
            key = run.jobs[name].key if name in run.jobs else name  # of a chain that has ended, and was lost
            took[key] += event["time"] - began.pop(name)
    return took


def whole_evaluation(run: LoadedRun) -> tuple[dict[str, list[float]], list[dict[str, Any]]]:
    """Return the mean of each method by round, and the difference and the corrected p of each pair of a round."""
    shards: dict[tuple[str, int], list[Job]] = defaultdict(list)
    for job in run.jobs.values():
        if job.stage == "evaluate" and job.round:
            shards[job.algo, job.round].append(job)
    values = {
        place: np.concatenate(
            [
                racing.shard_outcomes(run.store.root, job.key, "pass@1")
                for job in sorted(jobs, key=lambda job: job.shard or 0)
            ]
        )
        for place, jobs in shards.items()
    }
    assert {len(of) for of in values.values()} == {PROMPTS}
    pairs = []
    for number in range(1, ROUNDS + 1):
        both = list(combinations(METHODS, 2))
        differences = [values[first, number] - values[second, number] for first, second in both]
        p_values = [p for p, _ in statistics.paired_tests(differences, [1.0] * len(both))]
        for (first, second), of, p in zip(both, differences, statistics.holm(p_values), strict=True):
            told = {"round": number, "first": first, "second": second, "difference": float(of.mean()), "p": p}
            pairs.append(told)
    means = {name: [float(values[name, number].mean()) for number in range(1, ROUNDS + 1)] for name in METHODS}
    return means, pairs


def verdicts(standing: Standing, seconds: float) -> dict[str, Any]:
    """Return what a race has claimed, and what it used."""
    return {
        "pairs": len(standing.pairs),
        "settled": [[pair.round, pair.better, pair.worse] for pair in standing.pairs if pair.better],
        "stopped": [name.rpartition("/")[2] for name in standing.stopped],
        "prompts": sum(map(sum, standing.looks.values())),
        "seconds": seconds,
    }


def repeat(out: Path, seed: int) -> dict[str, Any]:
    """Race and evaluate six methods with this seed."""
    folder = out / f"seed{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    runs = {
        "best": run(folder, "best", seed, "best"),
        "separated": run(folder, "separated", seed, "separated"),
        "whole": run(folder, "whole", seed, None),
    }
    took = {name: seconds_by_key(of) for name, of in runs.items()}
    took_by_key = sum(took.values(), Counter[str]())
    means, pairs = whole_evaluation(runs["whole"])
    found: dict[str, Any] = {"seed": seed, "means": means, "pairs": pairs}
    for name in ("best", "separated"):
        standing = read_standing(runs[name].folder)
        assert standing is not None
        assert not standing.racing
        planned = sum(took_by_key[job.key] for job in runs[name].jobs.values())
        found[name] = verdicts(standing, took["best"].total() if name == "best" else planned)
        rows = {(row.algo, row.round): row.value for row in runs[name].results.rows if row.metric == "pass@1"}
        left = {algo: value for (algo, number), value in rows.items() if number == ROUNDS and algo in METHODS}
        found[name]["leader"] = max(left, key=lambda algo: left[algo] or 0.0)
    found["whole"] = {
        "prompts": len(METHODS) * ROUNDS * PROMPTS,
        "seconds": sum(took_by_key[job.key] for job in runs["whole"].jobs.values()),
    }
    shutil.rmtree(folder)
    return found


def pair_of(line: dict[str, Any], number: int, one: str, other: str) -> dict[str, Any]:
    """Return what the whole evaluation says of two methods after a round, as `one` minus `other`."""
    [found] = [
        pair
        for pair in line["pairs"]
        if pair["round"] == number and {pair["first"], pair["second"]} == {one, other}
    ]
    return {**found, "difference": found["difference"] * (1 if found["first"] == one else -1)}


def spread(values: list[float]) -> str:
    """Return a mean, and the least and the largest value."""
    return f"{np.mean(values):.0%} ({min(values):.0%} to {max(values):.0%})"


def told(lines: list[dict[str, Any]], until: str) -> str:
    """Return the row of the table for races of a kind."""
    claims = [[pair_of(line, *settled) for settled in line[until]["settled"]] for line in lines]
    agree = sum(all(pair["difference"] > 0 for pair in of) for of in claims)
    flat = [pair for of in claims for pair in of]
    shown = sum(pair["difference"] > 0 and pair["p"] < ALPHA for pair in flat)
    known = np.mean([sum(pair["p"] < ALPHA for pair in line["pairs"]) for line in lines])
    prompts = [line[until]["prompts"] / line["whole"]["prompts"] for line in lines]
    saved = [1 - line[until]["seconds"] / line["whole"]["seconds"] for line in lines]
    cells = [
        f"`{until}`",
        f"{agree} of {len(lines)}",
        f"{shown:,} of {len(flat):,}",
        f"{len(flat) / len(lines):.1f} of {np.mean([line[until]['pairs'] for line in lines]):.1f}",
        f"{known:.1f} of {len(lines[0]['pairs'])}",
        spread(prompts),
        spread(saved),
    ]
    return f"| {' | '.join(cells)} |"


def told_of_best(lines: list[dict[str, Any]]) -> str:
    """Return how the leader of a race compares with the best method of the whole evaluation."""
    same, others = 0, list[str]()
    near = 0
    for line in lines:
        top, leader = max(METHODS, key=lambda algo: line["means"][algo][-1]), line["best"]["leader"]
        same += top == leader
        if top != leader:
            pair = pair_of(line, ROUNDS, top, leader)
            near += pair["p"] >= ALPHA
            if pair["p"] < ALPHA:
                ended = "stopped after round 1" if top in line["best"]["stopped"] else "in the race"
                others.append(
                    f"seed {line['seed']}: {leader}, {top} ({ended}) is {pair['difference']:.3f} above it"
                )
    return (
        f"leader of `best` after round {ROUNDS}: the best of the whole evaluation in {same} of {len(lines)} "
        f"repeats, not told apart from it in {near}; else {'; '.join(others) or 'none'}"
    )


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=20)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "races.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    for seed in range(1, given.repeats + 1):
        if seed not in {line["seed"] for line in lines}:
            lines.append(repeat(given.out, seed))
            with file.open("a") as text:
                text.write(json.dumps(lines[-1]) + "\n")
    if lines:
        print("| until | all signs agree | told apart there | settled | by the whole | prompts | device s saved |")
        print("|---|---|---|---|---|---|---|")
        print("\n".join(told(lines, until) for until in ("separated", "best")))
        print(told_of_best(lines))


if __name__ == "__main__":
    main()
