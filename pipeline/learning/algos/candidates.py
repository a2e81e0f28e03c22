"""Where the methods of a run are not sampled alike, so that part of their differences is not of the methods."""

from __future__ import annotations

import math

from pipeline.config.schema import Config
from pipeline.learning.algos.value_guided import ValueAlgoConfig
from pipeline.learning.choices import Others


def candidates_note(config: Config) -> str:
    """What to tell beside numbers of which some are of policies that drop tokens; "" where none does.

    Dropping unlikely tokens makes fewer mistakes by itself, without any value. The reference, which every run has,
    drops none, and neither do policies that were trained.
    """
    dropping: dict[str, list[str]] = {}
    for name, algo in sorted(config.algos.items()):
        if algo.enabled and isinstance(algo, ValueAlgoConfig) and _drops(algo):
            dropping.setdefault(_dropped(algo), []).append(name)
    if not dropping:
        return ""
    told = "; ".join(f"{', '.join(names)}: {which} are never drawn" for which, names in dropping.items())
    return (
        f"{told}. All other policies may draw every token, so a part of the difference is due to that alone; "
        "algos.<NAME>.others=kept drops none."
    )


def _drops(algo: ValueAlgoConfig) -> bool:
    return algo.others is Others.dropped and not math.isinf(algo.eta)


def _dropped(algo: ValueAlgoConfig) -> str:
    few = f"tokens beyond the {algo.top_k:,} likeliest of the reference"
    return f"{few} or below {algo.min_p:g}" if algo.min_p > 0 else few
