"""What candidates are worth and what they cost: `top_k`, `min_p` and head of a value-guided method.

    python benchmarks/candidates.py
    python benchmarks/candidates.py --method PITA --references 0 1 2 3 4

One value model of each head is trained for one round on each reference, and then samples with every `top_k`
and `min_p`, on validation prompts and with the same draws for all. What a setting loses is J(widest) -
J(setting), with J = reward - eta * KL, which is what the methods maximise; in the widest every token is a
candidate. What it costs is FLOPs of reference and value model by those of the reference alone, along the same
texts.

Prints tables and writes a figure. What was trained is stored: a second call evaluates alone.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from pipeline import arithmetic

arithmetic.pin("numpy", "torch")  # trainings run in this process

import numpy as np
from numpy.typing import NDArray

from benchmarks.others import Evaluation, Measured, Trained, train, trained_by
from pipeline.config.schema import Config
from pipeline.learning.algos.value_guided import ValueAlgoConfig
from pipeline.learning.choices import HeadType
from pipeline.learning.models.flops import metered
from pipeline.runs.figures import looks, styled

WIDEST = (13, 0.0)
"""All tokens of the addition task."""
GRID = [(k, p) for k in (2, 3, 4, 6, 13) for p in (0.0, 0.005, 0.02, 0.05, 0.1)]

Setting = tuple[int, float]
"""`top_k` and `min_p`."""


@dataclass(frozen=True)
class Point:
    """A setting, on one or several references.

    Attributes:
        cost: FLOPs of guided decoding by those of its reference.
        reward: Mean over prompts and samples.
        kl: In nats per sequence.
        regret: Of each prompt, J(widest) - J(setting).
    """

    cost: float
    reward: float
    kl: float
    regret: NDArray[np.float64]

    @property
    def lost(self) -> float:
        """Mean of the regret."""
        return float(self.regret.mean())

    @property
    def error(self) -> float:
        """Its standard error over prompts."""
        return float(self.regret.std(ddof=1) / len(self.regret) ** 0.5)


def together(points: Sequence[Point]) -> Point:
    """Several references as one."""
    cost, reward, kl = (
        float(np.mean([getattr(one, name) for one in points])) for name in ("cost", "reward", "kl")
    )
    return Point(cost, reward, kl, np.concatenate([one.regret for one in points]))


def measure(evaluation: Evaluation, trained: Trained, eta: float) -> dict[Setting, Point]:
    """Every setting of one value model."""
    algo = evaluation.config.algos[trained.method]
    assert isinstance(algo, ValueAlgoConfig)
    found: dict[Setting, tuple[Measured, float]] = {}
    for top_k, min_p in GRID:
        with metered() as meter:
            measured = evaluation.measure(trained, replace(algo, top_k=top_k, min_p=min_p))
        found[top_k, min_p] = measured, meter.flops["guidance"] / meter.flops["decoding"]
    best = found[WIDEST][0].worth(eta)
    return {
        setting: Point(1 + cost, float(one.reward.mean()), float(one.kl.mean()), best - one.worth(eta))
        for setting, (one, cost) in found.items()
    }


def main() -> None:
    args = _arguments()
    curves: dict[str, dict[Setting, Point]] = {}
    for head in (HeadType.v, HeadType.q):
        config = train(args, f"candidates_{head.name}", [args.method], f"algos.{args.method}.head={head.name}")
        evaluation, eta = Evaluation(config, args.prompts, args.samples), _eta(config, args.method)
        each = [measure(evaluation, trained, eta) for trained in trained_by(config)]
        curves[head.name] = {setting: together([one[setting] for one in each]) for setting in GRID}
        print(f"\nHead {head.name}\n\n" + _table(curves[head.name], each), flush=True)
    if args.image:
        draw(curves, args.image)


def _eta(config: Config, method: str) -> float:
    algo = config.algos[method]
    assert isinstance(algo, ValueAlgoConfig)
    return algo.eta


def _table(points: dict[Setting, Point], each: Sequence[dict[Setting, Point]]) -> str:
    head = ["`top_k`", "`min_p`", "cost", "reward", "KL/seq", "J lost", "by reference"]
    lines = [head, ["---"] * len(head)]
    for (top_k, min_p), point in points.items():
        apart = " ".join(f"{one[top_k, min_p].lost:+.3f}" for one in each)
        figures = [f"{point.cost:.2f}", f"{point.reward:.3f}", f"{point.kl:.3f}"]
        lines.append([str(top_k), f"{min_p:g}", *figures, f"{point.lost:+.4f} ± {point.error:.4f}", apart])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(curves: dict[str, dict[Setting, Point]], path: Path) -> None:
    """What is lost over what it costs: a line over `top_k` for each head, with and without a `min_p`."""
    from matplotlib.figure import Figure

    lines = {
        f"head {head}, min_p={min_p:g}": sorted((k, point) for (k, p), point in points.items() if p == min_p)
        for head, points in curves.items()
        for min_p in (0.0, 0.02)
    }
    with styled():
        figure = Figure(figsize=(5.06, 2.6), layout="constrained")
        axes = figure.add_subplot()
        for (name, line), look in zip(lines.items(), looks(list(lines)).values(), strict=False):
            axes.errorbar(
                [point.cost for _, point in line],
                [point.lost for _, point in line],
                yerr=[1.96 * point.error for _, point in line],
                color=look["color"],
                marker=look["marker"],
                linestyle="-",
                elinewidth=0.7,
                label=name,
            )
            if name == "head v, min_p=0":
                for top_k, point in line:
                    axes.annotate(str(top_k), (point.cost, point.lost), (3, 6), textcoords="offset points")
        axes.axhline(0, color="#777777", linewidth=0.6)
        axes.set_xlabel("FLOPs of guided by those of plain decoding")
        axes.set_ylabel("J lost against all tokens")
        axes.legend(loc="lower right")
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--method", choices=["QSharp", "CD", "PITA"], default="QSharp")
    parser.add_argument("--references", type=int, nargs="+", default=[0, 1, 2], help="seeds of tiny references")
    parser.add_argument("--steps", type=int, default=1500, help="of training a reference")
    parser.add_argument("--prompts-per-round", type=int, default=3000)
    parser.add_argument("--prompts", type=int, default=500, help="that are evaluated")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("outputs"))
    parser.add_argument("--image", type=Path, help="a figure is written to, as an SVG: docs/images/candidates.svg")
    return parser.parse_args()


if __name__ == "__main__":
    main()
