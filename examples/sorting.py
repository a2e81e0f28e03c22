"""Sorting digits: ``52907=`` is answered ``02579``. Rows are made from their ids, so it needs no files.

    python run_parallel.py experiment.name=x 'dataset=[]' datasets.sorting.class_path=examples.sorting.Sorting \
        datasets.sorting.digits=4 datasets.sorting.test_size=500 datasets.sorting.validation_size=500

The demonstrations that the tiny reference learns from are of mixed quality: some are in falling order. It imitates
both kinds, so there is something to gain by selecting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pipeline import ConfigError, Dataset, DatasetConfig, Row


@dataclass(kw_only=True)
class SortingConfig(DatasetConfig):
    """Settings under ``datasets.<NAME>``: those of every dataset, and what is added or changed here."""

    digits: int = 5
    falling: float = 0.5
    """Share of demonstrations that are in falling order."""
    test_size: int = 2000
    validation_size: int = 2000


class Sorting(Dataset):
    """Row id = the number to sort."""

    config_class: ClassVar[type[DatasetConfig]] = SortingConfig
    vocabulary = (*"0123456789", "=", "<bos>")
    bos_token: ClassVar[str] = "<bos>"  # noqa: S105 - a token of text
    fixed_length = True
    note: ClassVar[str] = "sorting: the reference has seen a known share of demonstrations in falling order."

    def __init__(self, config: SortingConfig) -> None:
        super().__init__(config)
        if not 2 <= config.digits <= 7:
            raise ConfigError(f"sorting: digits={config.digits} must be 2 to 7")
        self.digits, self.falling = config.digits, config.falling
        self.completion_length = config.digits
        self.split_ids("sorting", 10**config.digits)

    def row(self, row_id: int) -> Row:
        """Prompt ``52907=`` and column ``solution`` ``02579``, which rewards are given."""
        number = f"{row_id:0{self.digits}d}"
        return Row(row_id, f"{number}=", {"solution": "".join(sorted(number))})

    def demonstration(self, row_id: int, draw: float) -> tuple[str, str]:
        """The solution, or with probability `falling` the solution from its end."""
        row = self.row(row_id)
        solution = str(row.columns["solution"])
        return str(row.prompt), solution[::-1] if draw < self.falling else solution
