"""Random search for the settings of every method, the same number of configurations each, on validation prompts.

    python benchmarks/tuning.py                             # all methods; goes on where it was stopped
    python benchmarks/tuning.py --methods PITA QSharp
    python benchmarks/tuning.py --table                     # what has been run, as in data/trials.md

A trial is a run of the pipeline with one method, on references 0, 1 and 2 and a seed of the experiment that no
table of results has. Configurations are drawn once and for all from the spaces below; the first of each method is
its default, and the only one where its worst reference gets so much that no other could replace it. Test prompts
are never looked at, and references from 3 on are left for whoever wants to know how well the chosen settings carry
over.

Jobs run in this process, one after the other. What is stored is not computed again, and a finished trial is one
line of `trials.jsonl`, so an interrupted search goes on. A line counts as long as its trial would compute the same
today: trials of former defaults or of former code are run again. A line that is no trial of today is passed over
with a warning.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Annotated

os.environ.setdefault("OMP_NUM_THREADS", "1")

from pipeline import arithmetic

arithmetic.pin("numpy", "torch")  # trials run in this process

import numpy as np
from msgspec import Meta
from rich.console import Console

from pipeline.commands.request import prepare
from pipeline.commands.results import OBJECTIVE, values_of
from pipeline.commands.run import run_experiment
from pipeline.config.load import load_config
from pipeline.errors import PipelineError
from pipeline.files import json_text
from pipeline.foreign import ForeignDataError, read_json, read_plain
from pipeline.runs.record import collect_rows

TRIALS = 8
REFERENCES = (0, 1, 2)
SEED = 100
"""Of the experiment, so that no chain of a table of results is one that settings were chosen by."""

_AHEAD = 0.02
"""By which the worst reference of the best trial must be ahead for a default to give way."""

_TWINS = 1000
"""Draws one after the other that give nothing new, after which no more are tried."""

Draw = Callable[[np.random.Generator], float]
Settings = dict[str, int | float | None]
"""Name under ``algos.<method>`` -> value."""


def _log_uniform(low: float, high: float) -> Draw:
    """Rounded to two digits, so that a table shows what was run."""
    return lambda draw: float(f"{np.exp(draw.uniform(np.log(low), np.log(high))):.1e}")


def _one_of(*values: float) -> Draw:
    return lambda draw: values[int(draw.integers(len(values)))]


# A pretrained backbone wants small steps and a head that starts from zero large ones, so the two ranges differ by
# as much as what each has to move. No value model is given more passes over the data than the default, so that no
# configuration wins by its compute alone; policies, of which a default sees the data once, may see them twice.
_VALUE: dict[str, Draw] = {
    "learning_rate": _log_uniform(2e-4, 3e-3),
    "head_learning_rate": _log_uniform(3e-3, 3e-1),
    "epochs": _one_of(2, 3, 4),
    "batch_size": _one_of(64, 128, 256),
}
_POLICY: dict[str, Draw] = {"learning_rate": _log_uniform(5e-5, 2e-3), "epochs": _one_of(1, 2)}
_FITTED_REWARD: dict[str, Draw] = {
    "reward_model.learning_rate": _log_uniform(2e-4, 5e-3),
    "reward_model.epochs": _one_of(1, 2),
}
SPACES: dict[str, dict[str, Draw]] = {
    "PITA": _VALUE,
    "QSharp": _VALUE,
    "CD": _VALUE,
    "DPO": {**_POLICY, "beta": _log_uniform(0.05, 2.0)},
    "KTO": {**_POLICY, "beta": _log_uniform(0.05, 2.0)},
    "ORPO": {**_POLICY, "beta": _log_uniform(0.05, 2.0)},
    "SimPO": {**_POLICY, "beta": _log_uniform(0.5, 10.0), "simpo_gamma": _one_of(0.0, 0.5, 1.0, 1.5)},
    "RAFT": _POLICY,
    "GRPO": {**_POLICY, "beta": _one_of(0.0, 0.01, 0.04, 0.1)},
    "REINFORCEpp": {**_POLICY, "beta": _one_of(0.0, 0.01, 0.05, 0.1)},
    "RLOO": {**_POLICY, "beta": _one_of(0.0, 0.01, 0.05, 0.1)},
    "QSharp-HF": {**_VALUE, **_FITTED_REWARD},
    "GRPO-HF": {**_POLICY, "beta": _one_of(0.04, 0.1, 0.2, 0.4), **_FITTED_REWARD},
    "BestOfN": {"learning_rate": _log_uniform(2e-4, 5e-3), "epochs": _one_of(1, 2)},
}
"""What is drawn for each method. What says which problem is solved (eta, rewards, how much is sampled) is not."""


@dataclass(frozen=True)
class Trial:
    """One configuration of a method; that of number 0 is its default, others are numbered as they were drawn."""

    method: str
    number: int
    settings: Settings


@dataclass(frozen=True)
class Score:
    """What came of a trial.

    Attributes:
        settings: Of the trial.
        scores: The primary metric after the last round, by reference.
        seconds: Processor time of what was not stored.
        plan: Digest of what its jobs would compute, to know it by; lines of former versions have none.
    """

    method: str
    number: int
    settings: Settings
    scores: Annotated[list[float], Meta(min_length=len(REFERENCES), max_length=len(REFERENCES))]
    seconds: float
    plan: str = ""

    @property
    def rank(self) -> tuple[float, float]:
        """The higher the better: what the worst reference gets, then the mean."""
        return min(self.scores), fmean(self.scores)


def trials_of(method: str, count: int = TRIALS) -> list[Trial]:
    """The default and ``count - 1`` draws, no two of them alike, the same in every process.

    A draw that is the default, or one of the draws before it, is passed over with its number.

    Raises:
        SystemExit: The space of the method has not so many configurations, as far as draws tell.
    """
    draw = np.random.default_rng([SEED, zlib.crc32(method.encode())])
    default = load_config(["experiment.name=tuning", f"algos=[{method}]"]).algos[method]
    found = [Trial(method, 0, {name: attrgetter(name)(default) for name in SPACES[method]})]
    number = 0
    while len(found) < count:
        number += 1
        settings: Settings = {name: one(draw) for name, one in SPACES[method].items()}
        if settings not in [trial.settings for trial in found]:
            found.append(Trial(method, number, settings))
        elif number - found[-1].number > _TWINS:
            raise SystemExit(f"{method}: no more than {len(found)} configurations were found in {number} draws")
    return found


def overrides_of(trial: Trial, out: Path) -> list[str]:
    """The command line of a trial."""
    return [
        "experiment.name=tuning",
        f"experiment.seeds=[{SEED}]",
        f"output_dir={out}",
        f"algos=[{trial.method}]",
        f"models.tiny.seeds=[{','.join(map(str, REFERENCES))}]",
        "evaluation.split=validation",
        "system.use_parallel_execution=false",
        *(
            f"algos.{trial.method}.{name}={'null' if value is None else value}"
            for name, value in trial.settings.items()
        ),
    ]


def plan_of(trial: Trial, out: Path) -> str:
    """What tells a trial from one with other settings, or with the same under other defaults or other code."""
    keys = sorted(job.key for job in prepare(load_config(overrides_of(trial, out))).plan.jobs.values())
    return hashlib.sha256("".join(keys).encode()).hexdigest()[:16]


def run(trial: Trial, out: Path) -> Score:
    """Carry a trial out.

    Raises:
        PipelineError: It was refused, or a job of it failed.
    """
    config = load_config(overrides_of(trial, out))
    begun = time.process_time()
    if run_experiment(config, Console(file=io.StringIO(), width=120)):
        raise PipelineError(f"{trial.method} {trial.number} did not end well: see {out}/tuning/latest/run.log")
    request = prepare(config)
    rows = collect_rows(request.store, request.plan.jobs.values())
    last = [row for row in rows if row.algo == trial.method and row.round == config.rounds_of_training]
    scores = [values_of([row for row in last if row.reference == one])[OBJECTIVE] for one in REFERENCES]
    spent = round(time.process_time() - begun, 1)
    return Score(trial.method, trial.number, trial.settings, scores, spent, plan_of(trial, out))


# -- what has been run -----------------------------------------------------------------------------------------


def read_trials(path: Path, out: Path) -> list[Score]:
    """Trials that would compute the same today, the newest of each configuration; none where there is no file.

    Args:
        path: A line for each. What is no trial of today is passed over, and told on stderr.
        out: Where runs are kept.
    """
    found: dict[str, Score] = {}
    for number, line in enumerate(read_plain(path).split(b"\n") if path.exists() else [], 1):
        if not line.strip():
            continue
        try:
            score = _of_today(read_json(line, Score))
            plan = plan_of(Trial(score.method, score.number, score.settings), out)
        except (PipelineError, ForeignDataError) as error:
            print(f"{path}, line {number}, is passed over: {error}", file=sys.stderr)
            continue
        if score.plan == plan:
            found.pop(plan, None)
            found[plan] = score
    return list(found.values())


def _of_today(score: Score) -> Score:
    if score.method not in SPACES:
        raise ForeignDataError(f"there is no method {score.method!r} to search for")
    if other := sorted(score.settings.keys() ^ SPACES[score.method].keys()):
        raise ForeignDataError(
            f"the settings of {score.method} differ from what is drawn today in {', '.join(other)}"
        )
    return score


def append(path: Path, score: Score) -> None:
    """Add a line, behind one that was cut off too."""
    with path.open("ab+") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        cut_off = file.read(1) not in (b"", b"\n")
        file.write(b"\n" * cut_off + json_text(asdict(score)).encode() + b"\n")


def _is_settled(scores: Iterable[Score], method: str) -> bool:
    """Return whether nothing could be so far ahead of the default that it gave way."""
    default = trials_of(method, 1)[0].settings
    return any(
        min(score.scores) + _AHEAD >= 1 for score in scores if score.method == method and score.settings == default
    )


# -- the table -------------------------------------------------------------------------------------------------


def tables(scores: Sequence[Score], methods: Iterable[str]) -> str:
    """A table in Markdown for each method that has been tried; the best configuration is marked."""
    found = {method: [score for score in scores if score.method == method] for method in methods}
    return "\n".join(_table(method, rows) for method, rows in found.items() if rows)


def _table(method: str, scores: list[Score]) -> str:
    names, default = list(SPACES[method]), trials_of(method, 1)[0].settings
    best = max(scores, key=lambda score: score.rank)
    head = ["", *(f"`{name}`" for name in names), *(f"ref {one}" for one in REFERENCES), "mean", "worst", "CPU s"]
    lines = [f"### {method}", "", _line(head), _line(["---"] * len(head))]
    for score in sorted(scores, key=lambda score: score.number):
        mark = "**" if score is best else ""
        # What was the default of an earlier search is no longer one.
        label = "default" if score.settings == default else str(score.number or "former default")
        settings = ["" if score.settings[name] is None else f"{score.settings[name]:g}" for name in names]
        figures = [f"{value:.3f}" for value in (*score.scores, fmean(score.scores), min(score.scores))]
        lines.append(_line([f"{mark}{label}{mark}", *settings, *figures, f"{score.seconds:.0f}"]))
    return "\n".join([*lines, ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


# -- the command -----------------------------------------------------------------------------------------------


def main() -> None:
    args = _arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "trials.jsonl"
    scores = read_trials(path, args.out)
    done = [(score.method, score.settings) for score in scores]
    # One trial of each method after the other, so that a search that was cut short has been fair so far.
    todo = sorted(
        (trial for method in args.methods for trial in trials_of(method, args.trials)),
        key=lambda trial: trial.number,
    )
    for trial in () if args.table else todo:
        if (trial.method, trial.settings) in done or _is_settled(scores, trial.method):
            continue
        try:
            score = run(trial, args.out)
        except PipelineError as error:
            sys.exit(f"{error}\nTrials before it are kept in {path}; the same command goes on after them.")
        scores.append(score)
        append(path, score)
        shown = " ".join(f"{value:.3f}" for value in score.scores)
        print(f"{trial.method} {trial.number} {trial.settings}: {shown}, {score.seconds:.0f} s", file=sys.stderr)
    print(tables(scores, args.methods))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=100)
    )
    parser.add_argument("--methods", nargs="+", choices=list(SPACES), default=list(SPACES))
    parser.add_argument("--trials", type=int, default=TRIALS, help="configurations of each, the default included")
    parser.add_argument("--out", type=Path, default=Path("outputs/tuning"), help="where runs and trials are kept")
    parser.add_argument("--table", action="store_true", help="run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
