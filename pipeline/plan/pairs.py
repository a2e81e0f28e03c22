"""Whether datasets hold the pairs that algorithms ask of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.config.schema import Config
from pipeline.errors import ConfigError
from pipeline.learning.algos.dpo import DPOConfig, PairSource
from pipeline.learning.datasets.registry import load_dataset

_PAIR = ("chosen", "rejected")


def check_pairs(config: Config) -> None:
    """Refuse existing pairs of a dataset that makes its rows, and makes none with pairs.

    Raises:
        ConfigError: Names the algorithm and the dataset.
    """
    for name, section in config.datasets.items() if _asking(config) else ():
        dataset = load_dataset(section)
        if dataset.prepared:
            continue
        row = dataset.row(int(dataset.ids("train")[0]))
        if any(getattr(row, each) is None and row.columns.get(each) is None for each in _PAIR):
            refuse_unpaired(config, {name: ["prompt", *row.columns]})


def refuse_unpaired(config: Config, unpaired: Mapping[str, Sequence[str]]) -> None:
    """Refuse existing pairs of datasets that have none.

    Args:
        config: The request.
        unpaired: Those without, and the columns that their rows have.

    Raises:
        ConfigError: Names the algorithm and the dataset.
    """
    asking = _asking(config)
    for name, columns in unpaired.items() if asking else ():
        raise ConfigError(
            f"algos.{asking[0]}.pairs=existing: datasets.{name} has no pairs. Its rows need the columns "
            f"chosen and rejected, but have {', '.join(columns)}. Choose another dataset, or "
            f"algos.{asking[0]}.pairs=sampled"
        )


def _asking(config: Config) -> list[str]:
    """The algorithms that ask for pairs."""
    return [name for name, algo in config.algos.items() if algo.enabled and _asks(algo)]


def _asks(algo: object) -> bool:
    return isinstance(algo, DPOConfig) and algo.pairs is PairSource.existing
