"""Addition of two numbers, every number written least significant digit first: ``321+654=9750`` is 123 + 456.

The demonstrations that the reference learns from are of mixed quality: some drop every carry. The reference
imitates both kinds, so it is mediocre for a known reason, and there is something to gain by selecting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pipeline.config.schema import AdditionConfig, DatasetConfig
from pipeline.errors import ConfigError
from pipeline.learning.datasets.base import Dataset, Row


class Addition(Dataset):
    """Rows are pairs (a, b) of numbers with `digits` digits each; row id = a * 10**digits + b."""

    vocabulary: Sequence[str] = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "<bos>", "+", "=")
    bos_token: ClassVar[str] = "<bos>"  # noqa: S105 - a token of text
    fixed_length = True
    note: ClassVar[str] = (
        "addition: the reference imitates demonstrations of which a known share drops every carry. Methods select "
        "among what it already does; no new skill is taught."
    )

    def __init__(self, config: DatasetConfig) -> None:
        super().__init__(config)
        if not isinstance(config, AdditionConfig):
            raise ConfigError(f"dataset 'addition' needs AdditionConfig, not {type(config).__name__}")
        if not 1 <= config.digits <= 4:
            raise ConfigError(f"addition: digits={config.digits} must be 1 to 4")
        if not 0 <= config.carry_drop <= 1:
            raise ConfigError(f"addition: carry_drop={config.carry_drop} must be 0 to 1")
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
