"""What rewards have to say of rows as they are read: some that none can judge, and columns that hold nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pipeline.config.bases import DatasetConfig
from pipeline.learning.rewards.answers import is_missing
from pipeline.learning.rewards.registry import LoadedReward, load_functions, ships
from pipeline.learning.rewards.signature import needed_columns

_WHOLE = re.compile(r"(-?\d+)\.0+")


class RowCheck:
    """Is asked of each row, and says in the end what they have in common."""

    def __init__(self, name: str, config: DatasetConfig) -> None:
        """Find the rewards.

        Args:
            name: Of the dataset in the configuration, for messages.
            config: Of the dataset.
        """
        self._name = name
        rewards = load_functions(config)
        self._needs = [(reward, needed_columns(reward.function, reward.arguments)) for reward in rewards]
        self._lacking: dict[tuple[str, str], tuple[int, str]] = {}
        self._floats: dict[str, tuple[str, str] | None] = {}

    def __call__(self, columns: Mapping[str, Any], place: str) -> str:
        """Take a row into account.

        Args:
            columns: Of the row, without its texts.
            place: Where it is, for messages.

        Returns:
            Why a reward can judge no completion of it; "" where each can.
        """
        for reward, needed in self._needs:
            refuses = reward.traits.refuses
            if refuses is not None and (problem := refuses(columns)):
                another = f"or choose another reward by datasets.{self._name}.reward"
                return f"the reward '{reward.name}' {problem}, {another}"
            for column in needed:
                self._note_missing(reward, column, columns, place)
            if reward.traits.right is not None:
                self._note_float(reward, columns, place)
        return ""

    def told(self) -> list[str]:
        """Warnings of all rows that were taken into account."""
        said = []
        for (reward, column), (count, first) in self._lacking.items():
            rows = f"{count:,} row{'s' * (count != 1)} (first {first})"
            said.append(
                f"`{column}`, which the reward '{reward}' is given, is null or empty in {rows}. Write it there or "
                "leave them out, unless they are to have no score"
            )
        for reward, example in self._floats.items():
            if example is not None:
                text, place = example
                said.append(
                    f"all solutions are whole numbers with a point, as {text} ({place}), which numbers become "
                    f"where some of their column are missing: '{reward}' takes {text.partition('.')[0]} for wrong "
                    "there. Write them without"
                )
        return said

    def _note_missing(self, reward: LoadedReward, column: str, columns: Mapping[str, Any], place: str) -> None:
        """To rewards that ship an empty text is none; to others it may be a text as any other."""
        given = columns.get(column)
        if is_missing(given) and (ships(reward) or given is None):
            count, first = self._lacking.get((reward.name, column), (0, _shown(place)))
            self._lacking[reward.name, column] = count + 1, first

    def _note_float(self, reward: LoadedReward, columns: Mapping[str, Any], place: str) -> None:
        """Of a reward that compares texts: whether all solutions are texts such as 42.0."""
        solution = columns.get("solution")
        if is_missing(solution) or self._floats.get(reward.name, "") is None:
            return
        is_float = isinstance(solution, str) and _WHOLE.fullmatch(solution.strip())
        if not is_float:
            self._floats[reward.name] = None
        else:
            self._floats.setdefault(reward.name, (str(solution).strip(), _shown(place)))


def _shown(place: str) -> str:
    """What is written down does not depend on where files are."""
    return place.rpartition("/")[2]
