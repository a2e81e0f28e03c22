"""A program as anyone has one: it fits a line by gradient descent, and tells its sweep what it has reached."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence

import pipeline.sweeps

STEPS = 60


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit the line with the settings of a command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--batch_size", type=int, default=8)
    chosen = parser.parse_args(arguments)
    draw = random.Random(0)  # noqa: S311 - points of an example
    points = [(x, 3.0 * x - 1.0 + draw.gauss(0.0, 0.3)) for x in (draw.uniform(-1, 1) for _ in range(200))]
    train, held_out = points[:150], points[150:]
    slope = offset = by_slope = by_offset = 0.0
    for step in range(1, STEPS + 1):
        batch = draw.sample(train, chosen.batch_size)
        errors = [(x, slope * x + offset - y) for x, y in batch]
        by_slope = chosen.momentum * by_slope + sum(error * x for x, error in errors) / len(batch)
        by_offset = chosen.momentum * by_offset + sum(error for _, error in errors) / len(batch)
        slope, offset = slope - chosen.lr * by_slope, offset - chosen.lr * by_offset
        loss = sum((slope * x + offset - y) ** 2 for x, y in held_out) / len(held_out)
        pipeline.sweeps.log({"loss": loss}, step=step)
    print(f"y = {slope:.2f} x + {offset:.2f}, loss {loss:.4f}")


if __name__ == "__main__":
    main()
