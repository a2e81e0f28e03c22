"""How often intervals hold the truth, by simulation: those of several seeds and references, and those of pairs.

    python benchmarks/coverage.py                         10,000 runs of every case; goes on where it was stopped
    python benchmarks/coverage.py --repetitions 500 --into /tmp/few.jsonl
    python benchmarks/coverage.py --pairs                 differences of one or two seeds; see coverage_pairs.py

A run has S seeds, R references and P prompts, all crossed, and k samples a prompt. Whether a sample is right is a
coin whose log-odds are the sum of the prompt's difficulty (sd 1.5), of what a policy finds easy by itself (sd 0.7
for every policy and prompt), of the seed, and of the reference. What a seed shifts is one half its own at every
reference and one half new at each, as variances go. Shifts are such that the level of a policy has the standard
deviation in question; at 0.99, where levels cannot vary so much, they have a tenth of it. The second policy of a
difference shares half of the prompts' difficulty with the first and has effects of its own, as large.

Every case has all of its seeds drawn at once; fewer seeds are the first of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy import special

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.arguments import positive
from benchmarks.coverage_pairs import WAYS, pair_cases, pair_table, simulate_pairs
from pipeline.learning.evaluation.statistics import Spread, crossed_spread, share_interval

SEEDS = (3, 5, 10)
SPREADS = (0.0, 0.02, 0.05)
LEVELS = {0.4: 0.4, 0.9: 0.4, 0.99: 0.97}
"""Level of a policy -> that of the policy which it is compared with."""
DIFFICULTY, OWN = 1.5, 0.7
SHARED = 0.5
AT_ONCE = 250
WIDTH = 100
BAND = (0.925, 0.98)
KINDS = ("level", "level by Satterthwaite", "difference", "difference by Satterthwaite")

Values = NDArray[Any]
"""Numbers of 32 bits, which are quicker and do for shares."""


@dataclass(frozen=True)
class Case:
    """What is simulated.

    Attributes:
        level: Share of right answers.
        seed_sd: Standard deviation of a policy's level over seeds.
        references: R.
        reference_sd: Standard deviation of it over references.
        prompts: P.
        samples: k.
    """

    level: float
    seed_sd: float
    references: int
    reference_sd: float
    prompts: int
    samples: int


def cases() -> list[Case]:
    models = [(1, 0.0), (3, 0.0), (3, 0.05)]
    return [
        Case(level, seed_sd, references, reference_sd, prompts, samples)
        for level, (references, reference_sd), seed_sd, prompts, samples in product(
            LEVELS, models, SPREADS, (200, 500), (1, 4)
        )
    ]


# -- what is drawn -----------------------------------------------------------------------------------------------

_POINTS, _WEIGHTS = np.polynomial.hermite_e.hermegauss(61)
_WEIGHTS /= _WEIGHTS.sum()


def level_at(centre: float, spread: float) -> float:
    """The mean share of right answers where log-odds are normal."""
    return float(_WEIGHTS @ special.expit(centre + spread * _POINTS))


def _solved(function: Any, wanted: float, low: float, high: float) -> float:
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < wanted else (low, middle)
    return (low + high) / 2


@lru_cache
def shift(level: float, wanted: float) -> float:
    """The standard deviation in log-odds that gives levels this standard deviation."""
    within = float(np.hypot(DIFFICULTY, OWN))

    def spread_of(size: float) -> float:
        centre = _solved(lambda at: level_at(at, float(np.hypot(within, size))), level, -30, 30)
        levels = np.array([level_at(centre + size * point, within) for point in _POINTS])
        return float(np.sqrt(_WEIGHTS @ (levels - level) ** 2))

    return _solved(spread_of, wanted * (0.1 if level > 0.95 else 1), 0, 20) if wanted else 0.0


def outcomes(draw: np.random.Generator, runs: int, case: Case, level: float, difficulty: Values) -> Values:
    """The share of right samples, shape [runs, R, S, P], of a policy at a level."""
    shape = (runs, case.references, max(SEEDS), case.prompts)
    seed, reference = shift(level, case.seed_sd), shift(level, case.reference_sd)
    total = float(np.sqrt(DIFFICULTY**2 + OWN**2 + seed**2 + reference**2))
    centre = _solved(lambda at: level_at(at, total), level, -30, 30)

    def normal(size: float, *kept: int) -> Values:
        return np.float32(size) * draw.standard_normal([shape[at] if at in kept else 1 for at in range(4)], "f4")

    odds = centre + DIFFICULTY * difficulty + normal(OWN, 0, 1, 2, 3)
    odds = odds + normal(reference, 0, 1) + normal(seed / 2**0.5, 0, 2) + normal(seed / 2**0.5, 0, 1, 2)
    chance = special.expit(odds.astype(np.float32))
    right = sum((draw.random(shape, "f4") < chance).astype(np.float32) for _ in range(case.samples))
    return np.asarray(right / case.samples, np.float32)


# -- what is counted ---------------------------------------------------------------------------------------------


def satterthwaite(spread: Spread, confidence: float = 0.95) -> NDArray[np.float64]:
    """Half widths by one number of degrees of freedom for both parts."""
    known = spread.policies**2 / spread.policies_df + spread.prompts**2 / spread.prompts_df
    freedom = np.divide(spread.variance**2, known, out=np.ones_like(spread.value), where=known > 0)
    return np.asarray(-special.stdtrit(freedom, (1 - confidence) / 2) * np.sqrt(spread.variance))


def judged(first: Values, second: Values, level: float, other: float) -> Iterator[tuple[str, int]]:
    """How many intervals of each kind hold the truth."""
    spread = crossed_spread(first)
    low, high = share_interval(spread, 0.95)
    yield "level", int(((low <= level) & (level <= high)).sum())
    yield "level by Satterthwaite", int((np.abs(spread.value - level) <= satterthwaite(spread)).sum())
    spread = crossed_spread(first - second)
    off = np.abs(spread.value - (level - other))
    yield "difference", int((off <= spread.half_width(0.95)).sum())
    yield "difference by Satterthwaite", int((off <= satterthwaite(spread)).sum())


def simulate(case: Case, repetitions: int, seed: int) -> dict[str, float]:
    """The share of runs whose interval holds the truth, by kind of interval and number of seeds."""
    draw = np.random.Generator(np.random.SFC64(seed))
    counts: dict[str, int] = {}
    other = LEVELS[case.level]
    for start in range(0, repetitions, AT_ONCE):
        runs = min(AT_ONCE, repetitions - start)
        own, theirs = (draw.standard_normal((runs, 1, 1, case.prompts), "f4") for _ in range(2))
        first = outcomes(draw, runs, case, case.level, own)
        second = outcomes(draw, runs, case, other, np.float32(SHARED**0.5) * (own + theirs))
        for seeds in SEEDS:
            for name, count in judged(first[:, :, :seeds], second[:, :, :seeds], case.level, other):
                counts[f"{name}, S={seeds}"] = counts.get(f"{name}, S={seeds}", 0) + count
    return {name: count / repetitions for name, count in counts.items()}


Measured = list[tuple[Any, dict[str, float]]]
"""Cases, and by name of a count the share of runs."""


def measure(path: Path, repetitions: int, processes: int, simulated: Any, wanted: list[Any]) -> Measured:
    """Simulate the cases that a file lacks, and add each to it.

    Args:
        path: The file.
        repetitions: Runs of every case.
        processes: At once.
        simulated: Gives what is counted of a case, number of repetitions and seed.
        wanted: The cases.
    """
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known = {
        type(wanted[0])(**line["case"]): line["coverage"]
        for line in lines
        if line["repetitions"] == repetitions and line["case"].keys() == asdict(wanted[0]).keys()
    }
    missing = [(simulated, case, repetitions, seed) for seed, case in enumerate(wanted) if case not in known]
    with get_context("spawn").Pool(processes) as pool, path.open("a") as file:
        for case, coverage in pool.imap_unordered(_simulated, missing):
            known[case] = coverage
            line = {"case": asdict(case), "repetitions": repetitions, "coverage": coverage}
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(f"{len(known)}/{len(wanted)}: {case}", file=sys.stderr, flush=True)
    return [(case, known[case]) for case in wanted]


def _simulated(given: tuple[Any, Any, int, int]) -> tuple[Any, dict[str, float]]:
    simulated, case, repetitions, seed = given
    return case, simulated(case, repetitions, seed)


# -- what is printed ---------------------------------------------------------------------------------------------


def table(found: Measured) -> Iterator[str]:
    """Lines of Markdown: the least and the most of the four cases with 200 or 500 prompts, 1 or 4 samples."""
    columns = list(product(SEEDS, SPREADS))
    yield "| | R | " + " | ".join(f"S={seeds}, sd {spread:g}" for seeds, spread in columns) + " |"
    yield "|---|---|" + "---|" * len(columns)
    for kind, level in product(("level", "difference"), LEVELS):
        for references, spread in ((1, 0.0), (3, 0.0), (3, 0.05)):
            cells = []
            for seeds, seed_sd in columns:
                shares = [
                    shares[f"{kind}, S={seeds}"]
                    for case, shares in found
                    if (case.level, case.references, case.reference_sd) == (level, references, spread)
                    and case.seed_sd == seed_sd
                ]
                cells.append(f"{min(shares):.3f} {max(shares):.3f}")
            of = f"{level:g}" if kind == "level" else f"{level:g} - {LEVELS[level]:g}"
            yield (
                f"| {of} | {references}{f', sd {spread:g}' if references > 1 else ''} | "
                + " | ".join(cells)
                + " |"
            )


def summary(found: Measured, kinds: dict[str, list[str]]) -> Table:
    """How far each kind of interval strays from the band.

    Args:
        found: What was measured.
        kinds: Kind of interval -> names of its counts.
    """
    shown = Table(title=f"coverage of intervals of 0.95 over {len(found)} cases")
    for heading in ("interval", "least", "mean", "most", f"below {BAND[0]}", f"above {BAND[1]}"):
        shown.add_column(heading, justify="left" if heading == "interval" else "right")
    for kind, names in kinds.items():
        shares = np.array([shares[name] for _, shares in found for name in names])
        ends = [f"{number:.3f}" for number in (shares.min(), shares.mean(), shares.max())]
        shown.add_row(kind, *ends, str((shares < BAND[0]).sum()), str((shares > BAND[1]).sum()))
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=positive, default=10_000)
    parser.add_argument("--into", type=Path, default=Path("outputs/coverage.jsonl"), help="what is done so far")
    parser.add_argument("--processes", type=positive, default=2)
    parser.add_argument("--pairs", action="store_true", help="differences of one or two seeds")
    arguments = parser.parse_args()
    arguments.into.parent.mkdir(parents=True, exist_ok=True)
    how = arguments.into, arguments.repetitions, arguments.processes
    if arguments.pairs:
        found = measure(*how, simulate_pairs, pair_cases())
        lines, kinds = pair_table(found), {way: [f"holds, {way}"] for way in WAYS}
    else:
        found = measure(*how, simulate, cases())
        lines, kinds = table(found), {kind: [f"{kind}, S={seeds}" for seeds in SEEDS] for kind in KINDS}
    print("\n".join(lines))
    Console(width=max(WIDTH, Console().width)).print(summary(found, kinds))


if __name__ == "__main__":
    main()
