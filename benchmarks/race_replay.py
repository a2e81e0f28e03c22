"""Replay races on the outcomes of a finished run, with its prompts in other orders.

    python -m benchmarks.race_replay outputs/NAME/latest --orders 20 --look 250

Takes a run of one dataset, model, reference and seed whose chains were all evaluated on the same prompts, with
one completion each. Prints for each `until`: in how many orders every settled pair has the sign of the whole
evaluation, how many pairs are settled, and the prompts and device seconds that a race would have left out.
"""

import argparse
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.config.schema import Until
from pipeline.engine.journal import read_journal
from pipeline.engine.run_folder import RunFolder
from pipeline.learning.evaluation.statistics import Floats
from pipeline.plan.graph import Job
from pipeline.runs import racing
from pipeline.runs.loaded import LoadedRun


def outcomes_of(run: LoadedRun, metric: str) -> dict[tuple[str, int], Floats]:
    """Return (chain, round) -> outcome of each prompt, in the order of the split."""
    shards: dict[tuple[str, int], list[Job]] = defaultdict(list)
    for job in run.jobs.values():
        if job.stage == "evaluate" and job.round:
            shards[job.chain, job.round].append(job)
    return {
        place: np.concatenate(
            [
                racing.shard_outcomes(run.store.root, job.key, metric)
                for job in sorted(jobs, key=lambda job: job.shard or 0)
            ]
        )
        for place, jobs in shards.items()
    }


def seconds_of(run: LoadedRun) -> Counter[tuple[str, int, str]]:
    """Return (chain, round, stage) -> device seconds of its jobs."""
    began: dict[str, float] = {}
    took = Counter[tuple[str, int, str]]()
    for event in read_journal(run.folder.journal):
        job = run.jobs.get(str(event.get("job", "")))
        if job is not None and event["event"] == "JobStarted":
            began[job.id] = event["time"]
        elif job is not None and event["event"] == "JobFinished":
            took[job.chain, job.round, job.stage] += event["time"] - began[job.id]
    return took


def reordered(values: dict[tuple[str, int], Floats], order: NDArray[np.int_], chain: str, number: int) -> Floats:
    """Return the outcomes of a policy in another order of the prompts."""
    return values[chain, number][order]


def main() -> None:
    """Print one line for each `until`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--orders", type=int, default=20)
    parser.add_argument("--look", type=int, default=250)
    parser.add_argument("--metric", default="pass@1")
    given = parser.parse_args()
    run = LoadedRun(RunFolder(given.run.resolve()))
    values, seconds = outcomes_of(run, given.metric), seconds_of(run)
    rounds, prompts = max(number for _, number in values), len(next(iter(values.values())))
    chains = sorted({chain for chain, _ in values})
    place = chains[0].rpartition("/")[0]
    print(f"{len(chains)} chains, {rounds} rounds, {prompts:,} prompts, {seconds.total():,.0f} device s")
    for until in (Until.separated, Until.best):
        rules = racing.Rules(look=given.look, num_prompts=prompts, until=until, alpha=0.05, num_rounds=rounds)
        agree, settled, used, saved = 0, list[int](), list[int](), list[float]()
        for seed in range(given.orders):
            order = np.random.default_rng(seed).permutation(prompts)
            names = {chain: tuple(range(1, rounds + 1)) for chain in chains}
            race = racing.decide(place, names, rules, partial(reordered, values, order))
            signs = [
                (pair.better == pair.first)
                == (values[first, pair.round].mean() > values[second, pair.round].mean())
                for pair in race.pairs
                if pair.better
                for first, second in [(f"{place}/{pair.first}", f"{place}/{pair.second}")]
            ]
            agree += all(signs)
            settled.append(len(signs))
            used.append(sum(map(sum, race.looks.values())))
            saved.append(
                sum(
                    took * (1 - looks[number - 1] / prompts if stage == "evaluate" else 0.0)
                    if len(looks := race.looks[chain]) >= number
                    else took
                    for (chain, number, stage), took in seconds.items()
                    if number and chain in race.looks
                )
            )
        every = len(chains) * rounds * prompts
        print(
            f"{until.name}: settled pairs as in the whole run in {agree} of {given.orders} orders; "
            f"{np.mean(settled):.1f} of {len(race.pairs)} pairs settled; {np.mean(used) / every:.0%} of prompts; "
            f"{np.mean(saved):,.0f} device s saved ({np.mean(saved) / seconds.total():.0%})"
        )


if __name__ == "__main__":
    main()
