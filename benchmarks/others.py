"""What the rule for tokens that are no candidates is worth: J = reward - eta * KL of each value-guided method.

    python benchmarks/others.py
    python benchmarks/others.py --prompts-per-round 10000 --references 0 1 2

Each method is trained for one round, which the reference alone rolls in, so that data and value model are the same
under every rule. That model is then sampled from with few candidates and each rule, on validation prompts and with
the same draws for all. J is what the methods maximise, so a rule's regret against another is the difference of
their J, printed with its standard error over prompts. What was trained is stored: a second call evaluates alone.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from pipeline import arithmetic

arithmetic.pin("numpy", "torch")  # trainings run in this process

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from pipeline.commands.run import run_experiment
from pipeline.config.load import load_config
from pipeline.config.schema import Config, SystemConfig
from pipeline.engine.store.store import Store
from pipeline.learning.algos.registry import load_algorithm
from pipeline.learning.algos.value_guided import ValueAlgoConfig, ValueGuidedAlgorithms
from pipeline.learning.choices import Others
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.generation.decode import Guidance
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.generation.sampling import sample_keys
from pipeline.learning.models.load import load_policy, load_tokenizer, load_value
from pipeline.learning.rewards.scoring import Scorer

METHODS = ("PITA", "QSharp", "CD")
REFERENCE = "reference"
NAME = "others"


@dataclass(frozen=True)
class Trained:
    """A value model and the reference that it guides."""

    method: str
    reference: int | None
    value: Path
    policy: Path


@dataclass(frozen=True)
class Measured:
    """Means over the samples of each prompt, shape [prompts]."""

    reward: NDArray[np.float64]
    kl: NDArray[np.float64]

    def worth(self, eta: float) -> NDArray[np.float64]:
        """J of every prompt."""
        return self.reward - eta * self.kl


class Evaluation:
    """Prompts with their draws, the same for all policies."""

    def __init__(self, config: Config, prompts: int, samples: int) -> None:
        self.config, self.samples = config, samples
        section = config.datasets["addition"]
        self.dataset = load_dataset(section)
        self.ids = self.dataset.ids("validation")[:prompts]
        self.rows = [self.dataset.row(int(row)) for row in self.ids]
        self.scorer = Scorer(section, "cpu", None)

    def measure(self, trained: Trained, algo: ValueAlgoConfig | None) -> Measured:
        """Sample and score; None takes the reference as it is."""
        guidance = None
        if algo is not None:
            kind = load_algorithm(trained.method)
            assert issubclass(kind, ValueGuidedAlgorithms)
            value = load_value(trained.value, SystemConfig(), "cpu")
            guidance = Guidance(value, kind().tilt(algo))
        policy = TextPolicy(
            load_policy(trained.policy, SystemConfig(), "cpu"),
            load_tokenizer(trained.policy),
            self.config.generation,
            self.dataset,
            "cpu",
            guidance=guidance,
        )
        keys = sample_keys(0, NAME, self.ids, self.samples)
        found = policy.complete(policy.encode([row.prompt for row in self.rows]), keys, samples=self.samples)
        repeated = [row for row in self.rows for _ in range(self.samples)]
        scored = self.scorer.score(repeated, policy.text(found.tokens), found.tokens, 256)
        return Measured(*(values.reshape(-1, self.samples).mean(1) for values in (scored.values, found.kl)))


def train(args: argparse.Namespace, name: str, methods: Sequence[str], *settings: str) -> Config:
    """Train by the main command for one round, or take what is stored.

    Args:
        args: Where to, how many references, and how long.
        name: Of the run.
        methods: Which.
        settings: More of the request, which count before what stands here.
    """
    config = load_config(
        [
            f"experiment.name={name}",
            f"output_dir={args.out}",
            f"algos=[{','.join(methods)}]",
            "rounds_of_training=1",
            f"models.tiny.seeds=[{','.join(map(str, args.references))}]",
            f"models.tiny.steps={args.steps}",
            f"data_collection.prompts_per_round={args.prompts_per_round}",
            # The tables of results are of no use here.
            "evaluation.num_prompts=1",
            "evaluation.num_samples=1",
            "evaluation.bootstrap_samples=20",
            "system.use_parallel_execution=false",
            "device=cpu",
            *settings,
        ]
    )
    if run_experiment(config, Console(stderr=True)):
        raise SystemExit("a training failed: see above")
    return config


def main() -> None:
    args = _arguments()
    config = train(args, NAME, METHODS)
    evaluation = Evaluation(config, args.prompts, args.samples)
    found = sorted(trained_by(config), key=lambda each: (METHODS.index(each.method), each.reference))
    apart = (f"`{rule.name}`: reward | KL/seq | J - J(kept)" for rule in Others if rule is not Others.kept)
    print("| method | reference | `top_k` | `kept`: reward | KL/seq | J | " + " | ".join(apart) + " |")
    print("|---" * 12 + "|")
    for trained in found:
        for top_k in args.top_k:
            print(_line(evaluation, trained, top_k), flush=True)
    print("\n| reference | reward | KL/seq | without tokens that are no candidates by default | KL/seq |")
    print("|---" * 5 + "|")
    for trained in found[: len(args.references)]:
        print(_untilted(evaluation, trained), flush=True)


def _line(evaluation: Evaluation, trained: Trained, top_k: int) -> str:
    algo = _settings(evaluation, trained)
    chosen = {rule: replace(algo, top_k=top_k, min_p=0.0, others=rule) for rule in Others}
    found = {rule: evaluation.measure(trained, settings) for rule, settings in chosen.items()}
    kept = found[Others.kept]
    cells = [trained.method, trained.reference, top_k, *_means(kept), f"{kept.worth(algo.eta).mean():.3f}"]
    for rule, measured in found.items():
        if rule is not Others.kept:
            more = measured.worth(algo.eta) - kept.worth(algo.eta)
            cells += [*_means(measured), f"{more.mean():+.3f} ± {more.std(ddof=1) / len(more) ** 0.5:.3f}"]
    return _row(cells)


def _untilted(evaluation: Evaluation, trained: Trained) -> str:
    """What dropping does by itself: the candidates of the default under a tilt that is none."""
    alone = replace(_settings(evaluation, trained), others=Others.dropped, eta=1e6)
    measured = (evaluation.measure(trained, settings) for settings in (None, alone))
    return _row([trained.reference, *(mean for each in measured for mean in _means(each))])


def _settings(evaluation: Evaluation, trained: Trained) -> ValueAlgoConfig:
    algo = evaluation.config.algos[trained.method]
    assert isinstance(algo, ValueAlgoConfig)
    return algo


def _means(measured: Measured) -> tuple[str, str]:
    return f"{measured.reward.mean():.3f}", f"{measured.kl.mean():.3f}"


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def trained_by(config: Config) -> Iterator[Trained]:
    """The value models of a run of tiny references that is over."""
    folder = Path(config.output_dir) / config.experiment.name / "latest"
    jobs: list[dict[str, Any]] = json.loads((folder / "plan.json").read_text())["jobs"]
    store = Store(Path(config.output_dir).absolute() / ".store")
    references = [job["key"] for job in jobs if (job["algo"], job["stage"]) == (REFERENCE, "train")]
    seeds = config.models["tiny"].references
    assert len(references) == len(seeds)
    for job in jobs:
        if job["stage"] == "train" and job["algo"] in config.algos:
            (key,) = job["inputs"][f"{REFERENCE}.train"]
            number = seeds[references.index(key)]
            yield Trained(job["algo"], number, store.path(job["key"]), store.path(key))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--references", type=int, nargs="+", default=[0, 1], help="seeds of tiny references")
    parser.add_argument("--steps", type=int, default=1500, help="of training a reference")
    parser.add_argument("--prompts-per-round", type=int, default=3000)
    parser.add_argument("--prompts", type=int, default=500, help="that are evaluated")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--top-k", type=int, nargs="+", default=[2, 3, 6])
    parser.add_argument("--out", type=Path, default=Path("outputs"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
