"""Compare the intervals of races with those of the package confseq (Howard, Waudby-Smith), on the same draws.

    git clone https://github.com/gostevehoward/confseq
    python -m benchmarks.peer_intervals confseq/src        # its Python part alone, which imports multiprocess

The peer is `confseq.betting.hedged_cs` with its defaults. Its martingale `betting_mart` is called as it stands and
its ends are found by halving, as ours are, instead of on a grid of 1,001 means; a first check is that both agree.
Differences in [-1, 1] are to it outcomes in [0, 1]. Prints for each case: the share of sequences that ever leave
out the true mean, and medians of the widths of ours over those of the peer, and of the prompts after which 0 is
left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.learning.evaluation import anytime
from pipeline.learning.evaluation.statistics import Floats

LOOKS = (250, 1000, 5000)
LEVELS = (0.05, 0.0015)
"""Of one pair alone, and of a pair in a race of six methods and two rounds."""
_HALVINGS = 20


class Peer:
    """The sequences of confseq for differences in [-1, 1]."""

    def __init__(self, source: Path) -> None:
        """Import it from its source; NumPy 2 lacks a name that its annotations use."""
        np.float_ = np.float64  # type: ignore[attr-defined]
        sys.path.insert(0, str(source.resolve()))
        from confseq import betting  # type: ignore[import-not-found]

        self._betting: Any = betting

    def capital(
        self, differences: Floats, mean: float, alpha: float, population: int | None
    ) -> tuple[Floats, Floats]:
        """Return the capital against means of at most `mean`, and of at least it; 2 / alpha refutes them."""

        def bets(outcomes: Floats, _: float) -> Any:
            return self._betting.lambda_predmix_eb(outcomes, alpha=alpha / 2)

        told = {"lambdas_fn_positive": bets, "lambdas_fn_negative": bets, "alpha": alpha, "N": population}
        outcomes, at = (differences + 1) / 2, (mean + 1) / 2
        with np.errstate(all="ignore"):
            up, down = (self._betting.betting_mart(outcomes, at, theta=theta, **told) for theta in (1, 0))
        return up, down

    def interval(self, differences: Floats, alpha: float, population: int | None) -> tuple[float, float]:
        """Return the interval after all these prompts."""

        def end(way: int) -> float:
            kept, out = float(differences.mean()), -1.0 if way == 0 else 1.0
            for _ in range(_HALVINGS):
                middle = (kept + out) / 2
                is_out = (self.capital(differences, middle, alpha, population)[way] > 2 / alpha).any()
                kept, out = (kept, middle) if is_out else (middle, out)
            return out

        return end(0), end(1)

    def agrees(self, differences: Floats, alpha: float, population: int | None) -> bool:
        """Return whether `interval` is that of `hedged_cs` up to two steps of its grid."""
        low, high = self._betting.hedged_cs((differences + 1) / 2, alpha=alpha, N=population, breaks=1000)
        ends = self.interval(differences, alpha, population)
        return bool(np.abs(np.array(ends) - [2 * low[-1] - 1, 2 * high[-1] - 1]).max() < 2 * 2.1 / 1000)


def first_beyond(capital: Floats, goal: float) -> Floats:
    """Return after how many prompts each sequence reaches this; one more than all if it does not."""
    reached = capital >= goal
    found: Floats = np.where(reached.any(-1), reached.argmax(-1) + 1.0, capital.shape[-1] + 1.0)
    return found


Draw = Callable[[np.random.Generator], Floats]


def pairs(discordant: float, mean: float, prompts: int) -> Draw:
    """Return draws of differences of two policies that are right or wrong."""
    chances = [(discordant - mean) / 2, 1 - discordant, (discordant + mean) / 2]
    return lambda draw: draw.choice([-1.0, 0.0, 1.0], size=prompts, p=chances)


def whole_set(discordant: float, mean: float, population: int, prompts: int) -> Draw:
    """Return draws without replacement from a test set whose mean is just that."""
    up, down = round(population * (discordant + mean) / 2), round(population * (discordant - mean) / 2)
    values = np.concatenate([np.ones(up), -np.ones(down), np.zeros(population - up - down)])
    return lambda draw: draw.permutation(values)[:prompts]


def share(level: float, prompts: int) -> Draw:
    """Return draws of 1 with this probability, else -1: a level itself, as outcomes in [0, 1]."""
    return lambda draw: np.where(draw.random(prompts) < level, 1.0, -1.0)


def compare(peer: Peer, name: str, draw: Draw, mean: float, population: int | None, repeats: int) -> str:
    """Return a row for each level."""
    generator = np.random.default_rng(1)
    drawn = np.stack([draw(generator) for _ in range(repeats)])
    prompts, rows = drawn.shape[1], []
    for alpha in LEVELS:
        low, high = anytime.confidence_sequence(drawn, alpha, population=population)
        ours_out = float(((low[:, 0] > mean + 1e-6) | (high[:, 0] < mean - 1e-6)).mean())
        at_mean = [peer.capital(one, mean, alpha, population) for one in drawn]
        peers_out = float(np.mean([max(up.max(), down.max()) > 2 / alpha * (1 + 1e-6) for up, down in at_mean]))
        few = drawn[:20]
        assert peer.agrees(few[0], alpha, population)
        ratios = []
        for look in (look for look in LOOKS if look < (population or prompts + 1)):
            low, high = anytime.confidence_sequence(few[:, :look], alpha, population=population)
            theirs = np.array([np.diff(peer.interval(one[:look], alpha, population))[0] for one in few])
            ratios.append(f"{np.median((high - low)[:, 0] / theirs):.2f}")
        settles = ""
        if abs(mean) > 0 and " share" not in name:
            ours = np.minimum(*(first_beyond(of, 2 / alpha) for of in anytime.e_values(drawn, population)))
            at_zero = [peer.capital(one, 0.0, alpha, population) for one in drawn]
            theirs = np.array(
                [min(first_beyond(up, 2 / alpha), first_beyond(down, 2 / alpha)) for up, down in at_zero]
            )
            settles = f"{np.median(ours):,.0f} / {np.median(theirs):,.0f}"
        rows.append(f"| {name} | {alpha} | {ours_out:.4f} / {peers_out:.4f} | {', '.join(ratios)} | {settles} |")
    return "\n".join(rows)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--repeats", type=int, default=300)
    given = parser.parse_args()
    peer = Peer(given.source)
    print("| draws | alpha | left out the mean: ours / peer | width, ours to peer | prompts: ours / peer |")
    print("|---|---|---|---|---|")
    for discordant, mean in ((0.2, 0.0), (0.2, 0.05), (0.02, 0.0), (0.02, 0.01), (0.6, 0.0), (0.6, 0.1)):
        name = f"pairs, {discordant:.0%} differ, mean {mean:g}"
        print(compare(peer, name, pairs(discordant, mean, 5000), mean, None, given.repeats), flush=True)
    for level in (0.02, 0.5, 0.98):
        row = compare(peer, f"a share of {level:g}", share(level, 5000), 2 * level - 1, None, given.repeats)
        print(row, flush=True)
    for discordant, mean, size in ((0.2, 0.0, 3000), (0.2, 0.05, 3000), (0.02, 0.01, 3000), (0.6, 0.1, 500)):
        name = f"whole set of {size:,}, {discordant:.0%} differ, mean {mean:g}"
        row = compare(peer, name, whole_set(discordant, mean, size, size - 1), mean, size, given.repeats)
        print(row, flush=True)  # all but the last prompt: after that one ours is the mean itself


if __name__ == "__main__":
    main()
