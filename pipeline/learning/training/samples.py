"""Sampled completions as files: token ids as they were drawn, scores, and log-probabilities of who drew them.

Shapes: N completions, G of each prompt adjacent; T tokens of the longest, prompt included; C of the longest
completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from pipeline.learning.training.sequences import Sequences, read_arrays
from pipeline.outputs.reading import read_input

FILE = "samples.safetensors"


@dataclass(frozen=True)
class Samples:
    """Completions, in whole groups.

    Attributes:
        sequences: Prompts and completions; a completion begins where its sequence is supervised, and labels are
            its rewards, NaN where there is none.
        logprobs: Of each token of a completion under the policy that drew it, 0 beyond its end, shape [N, C],
            float32.
    """

    sequences: Sequences
    logprobs: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.sequences)

    @staticmethod
    def of(
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[int]],
        rewards: NDArray[np.float64],
        logprobs: Sequence[NDArray[np.float32]],
        rows: Sequence[int] | None = None,
    ) -> Samples:
        """Join prompts and completions.

        Args:
            prompts: Token ids, one for each completion.
            completions: Token ids.
            rewards: Shape [N].
            logprobs: As long as its completion each.
            rows: Id of the row of each prompt, where somebody asks.
        """
        ids = [[*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)]
        starts = [len(prompt) for prompt in prompts]
        return Samples(Sequences.of(ids, starts, rewards.tolist(), rows), padded(logprobs))

    @staticmethod
    def without_logprobs(sequences: Sequences) -> Samples:
        """Completions of the policy as it is, whose log-probabilities training computes anyway."""
        return Samples(sequences, np.zeros((len(sequences), 0), np.float32))

    @property
    def longest(self) -> int:
        """Tokens of the longest completion, C."""
        return int((self.sequences.lengths - self.sequences.starts).max(initial=0))

    @property
    def rewards(self) -> NDArray[np.float32]:
        """Shape [N]."""
        return self.sequences.labels

    def with_rewards(self, rewards: NDArray[np.float64]) -> Samples:
        """The same completions, scored otherwise."""
        return replace(self, sequences=replace(self.sequences, labels=rewards.astype(np.float32)))

    def silenced(self, rows: NDArray[np.bool_]) -> Samples:
        """The same completions, of which those that `rows` says, shape [N], take no part in a loss."""
        return replace(self, sequences=self.sequences.silenced(rows))

    def save(self, folder: Path) -> None:
        """Write them to a folder."""
        self.sequences.save(folder)
        save_file({"logprobs": self.logprobs}, folder / FILE)

    @staticmethod
    def load(folders: Sequence[Path]) -> Samples:
        """Read and join the completions of several folders, in their order.

        Raises:
            JobError: A file is missing or holds something else; says which job wrote it.
        """
        parts = [read_input(folder, FILE, _read) for folder in folders]
        width = max(part.shape[1] for part in parts)
        logprobs = [np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts]
        return Samples(Sequences.load(folders), np.concatenate(logprobs))


def _read(path: Path) -> NDArray[np.float32]:
    return read_arrays(path, {"logprobs": "fN,C"})["logprobs"]


def supervised_columns(values: NDArray[np.float64], data: Sequences) -> list[NDArray[np.float32]]:
    """Cut the supervised part out of each row of a table, shape [N, T]."""
    rows = zip(values, data.starts, data.lengths, strict=True)
    return [row[start:end].astype(np.float32) for row, start, end in rows]


def padded(rows: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Rows of different lengths as a table, 0 beyond their ends, shape [N, C]."""
    table = np.zeros((len(rows), max(map(len, rows), default=0)), np.float32)
    for place, values in enumerate(rows):
        table[place, : len(values)] = values
    return table
