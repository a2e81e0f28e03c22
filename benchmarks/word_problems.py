"""Writes a small chat dataset: word problems of one step, a question and an answer that ends in GSM8K's form.

    python -m benchmarks.word_problems data/word_problems.jsonl --rows 1200

For methods that run one after the other on a small real model: the answers teach the form, a reward then the sums.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

NAMES = ("Ana", "Ben", "Chi", "Dov", "Eva", "Finn", "Gus", "Hana", "Ida", "Jon")
THINGS = ("apples", "books", "coins", "eggs", "keys", "pens", "shells", "stamps")
STORIES = (
    ("{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?", "+"),
    ("{name} had {a} {things} and gave {b} away. How many {things} are left?", "-"),
    ("{name} has {a} boxes with {b} {things} in each. How many {things} is that?", "*"),
)


def row(draw: random.Random) -> dict[str, object]:
    """One conversation and the number that is right."""
    story, sign = draw.choice(STORIES)
    a, b = (draw.randint(2, 9), draw.randint(2, 9)) if sign == "*" else (draw.randint(20, 79), draw.randint(3, 19))
    right = {"+": a + b, "-": a - b, "*": a * b}[sign]
    question = story.format(name=draw.choice(NAMES), things=draw.choice(THINGS), a=a, b=b)
    turns = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": f"{a} {sign} {b} = {right}\n#### {right}"},
    ]
    return {"messages": turns, "solution": str(right)}


def main() -> None:
    """Write distinct rows, the same for the same number."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--rows", type=int, default=1200)
    given = parser.parse_args()
    draw, lines = random.Random(0), dict[str, None]()
    while len(lines) < given.rows:
        lines[json.dumps(row(draw))] = None
    given.path.parent.mkdir(parents=True, exist_ok=True)
    given.path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
