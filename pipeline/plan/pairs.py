"""Whether datasets hold the pairs that algorithms ask of them; of rows that are read it is known once they are."""

from __future__ import annotations

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
    asking = [name for name, algo in config.algos.items() if algo.enabled and _asks(algo)]
    for name, section in config.datasets.items() if asking else ():
        dataset = load_dataset(section)
        if dataset.prepared:
            continue
        row = dataset.row(int(dataset.ids("train")[0]))
        if any(getattr(row, each) is None and row.columns.get(each) is None for each in _PAIR):
            raise ConfigError(
                f"algos.{asking[0]}.pairs=existing: datasets.{name} has no pairs. Its rows need the columns "
                f"chosen and rejected, but have {', '.join(['prompt', *row.columns])}. Choose another dataset, or "
                f"algos.{asking[0]}.pairs=sampled"
            )


def _asks(algo: object) -> bool:
    return isinstance(algo, DPOConfig) and algo.pairs is PairSource.existing
