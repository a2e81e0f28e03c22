"""The cases of `coverage.py --pairs`: differences of one or two seeds that few prompts tell apart.

At most prompts both policies answer alike, always. At the others, which are drawn, one of the two is right, and
the other is wrong at a share of its samples: at the one where there is one, else at a share that is drawn from 0
to 1 for every prompt and seed. Which of the two is the better one at such a prompt is drawn too: the first with
the chance that a case says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from pipeline.learning.evaluation.statistics import crossed_spread, paired_intervals, paired_tests

SHAPES = {(1, 1): "1 sample", (4, 1): "4 samples", (1, 2): "2 seeds"}
"""Samples a prompt and seeds -> how a column is called."""
FAVOURING = (0.5, 0.75, 1.0)
EXPECTED = (3, 5, 10, 50)
PROMPTS = (200, 500)
AT_ONCE = 500
WAYS = ("paired", "Student's t")


@dataclass(frozen=True)
class PairCase:
    """What is simulated.

    Attributes:
        prompts: P.
        differing: Prompts at which the policies differ, as expected.
        favouring: Share of these at which the first is better.
        samples: Of a prompt.
        seeds: S.
    """

    prompts: int
    differing: int
    favouring: float
    samples: int
    seeds: int

    @property
    def truth(self) -> float:
        """The difference: at such a prompt one answer where there is one sample, else half of one on average."""
        size = 1.0 if self.samples * self.seeds == 1 else 0.5
        return size * (2 * self.favouring - 1) * self.differing / self.prompts


def pair_cases() -> list[PairCase]:
    """All of them."""
    return [
        PairCase(prompts, differing, favouring, *shape)
        for shape, prompts, differing, favouring in product(SHAPES, PROMPTS, EXPECTED, FAVOURING)
    ]


def drawn(draw: np.random.Generator, runs: int, case: PairCase) -> NDArray[np.float64]:
    """Differences of every run, prompt by prompt, shape [runs, P]."""
    shape = (runs, case.prompts)
    told = draw.random(shape) < case.differing / case.prompts
    sign = np.where(draw.random(shape) < case.favouring, 1.0, -1.0)
    if case.samples * case.seeds == 1:
        return np.where(told, sign, 0.0)
    shares = draw.random((case.seeds, *shape))
    wrong = draw.binomial(case.samples, shares) / case.samples
    return np.asarray(told * sign * wrong.mean(0))


def simulate_pairs(case: PairCase, repetitions: int, seed: int) -> dict[str, float]:
    """Shares of runs whose interval holds the truth, and whose interval leaves 0 out though the test does not."""
    draw = np.random.Generator(np.random.SFC64(seed))
    counts = {f"{what}, {way}": 0 for way in WAYS for what in ("holds", "contradicts")}
    for start in range(0, repetitions, AT_ONCE):
        differences = drawn(draw, min(AT_ONCE, repetitions - start), case)
        spread = crossed_spread(differences[:, None, None, :])
        student = spread.value[:, None] + spread.half_width(0.95)[:, None] * np.array([-1, 1])
        paired = np.array(paired_intervals(list(differences), [1.0] * len(differences), 0.95))
        kept = np.array([p for p, _ in paired_tests(list(differences), [1.0] * len(differences))]) >= 0.05
        for way, (low, high) in zip(WAYS, (paired.T, student.T), strict=True):
            counts[f"holds, {way}"] += int(((low <= case.truth) & (case.truth <= high)).sum())
            counts[f"contradicts, {way}"] += int((((low > 0) | (high < 0)) & kept).sum())
    return {name: count / repetitions for name, count in counts.items()}


def pair_table(found: list[tuple[PairCase, dict[str, float]]]) -> Iterator[str]:
    """Lines of Markdown: by prompts and how many of them differ, the share of intervals that hold the truth."""
    by_case = dict(found)
    columns = list(product(SHAPES, FAVOURING))
    yield "| P | differ | " + " | ".join(f"{SHAPES[shape]}, {part:.0%}" for shape, part in columns) + " |"
    yield "|---|---|" + "---|" * len(columns)
    for prompts, differing in product(PROMPTS, EXPECTED):
        shares = [by_case[PairCase(prompts, differing, part, *shape)]["holds, paired"] for shape, part in columns]
        yield f"| {prompts} | {differing} | " + " | ".join(f"{share:.3f}" for share in shares) + " |"
    yield ""
    for way in WAYS:
        most = max(counts[f"contradicts, {way}"] for counts in by_case.values())
        yield f"{way}: in up to {most:.1%} of the runs of a case 0 is left out though the test does not reject it"
