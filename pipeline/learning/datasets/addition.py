"""Addition of two numbers, every number written least significant digit first: ``321+654=9750`` is 123 + 456.

The demonstrations that the reference learns from are of mixed quality: some drop every carry. The reference
imitates both kinds, so it is mediocre for a known reason, and there is something to gain by selecting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipeline.config.bases import DatasetConfig
from pipeline.config.fields import number
from pipeline.learning.datasets.base import Dataset, Row


@dataclass(kw_only=True)
class AdditionConfig(DatasetConfig):
    """Addition of two numbers, operands and sum written least significant digit first."""

    digits: int = number(3, at_least=1, at_most=4)
    """Digits of each of the two numbers."""
    carry_drop: float = number(0.6, at_least=0, at_most=1)
    """Share of the reference's demonstrations that ignore every carry."""


class Addition(Dataset):
    """Rows are pairs (a, b) of numbers with `digits` digits each; row id = a * 10**digits + b."""

    vocabulary: Sequence[str] = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "<bos>", "+", "=")
    config_class: ClassVar[type[DatasetConfig]] = AdditionConfig
    bos_token: ClassVar[str] = "<bos>"  # noqa: S105 - a token of text
    fixed_length = True
    note: ClassVar[str] = (
        "addition: the reference imitates demonstrations of which a known share drops every carry. Methods select "
        "among what it already does; no new skill is taught."
    )

    def __init__(self, config: AdditionConfig) -> None:
        super().__init__(config)
        self.digits = config.digits
        self.carry_drop = config.carry_drop
        self.completion_length = config.digits + 1
        self.split_ids("addition", 10 ** (2 * config.digits))

    def row(self, row_id: int) -> Row:
        """Prompt ``321+654=`` and column ``solution`` ``9750``."""
        a, b = divmod(row_id, 10**self.digits)
        return Row(row_id, self._prompt(a, b), {"solution": _reversed(a + b, self.digits + 1)})

    def demonstration(self, row_id: int, draw: float) -> tuple[str, str]:
        """The sum, or with probability `carry_drop` the sum without any carry."""
        a, b = divmod(row_id, 10**self.digits)
        if draw >= self.carry_drop:
            return self._prompt(a, b), _reversed(a + b, self.digits + 1)
        pairs = zip(_reversed(a, self.digits), _reversed(b, self.digits), strict=True)
        return self._prompt(a, b), "".join(str((int(x) + int(y)) % 10) for x, y in pairs) + "0"

    def _prompt(self, a: int, b: int) -> str:
        return f"{_reversed(a, self.digits)}+{_reversed(b, self.digits)}="


def _reversed(number: int, digits: int) -> str:
    return f"{number:0{digits}d}"[::-1]
