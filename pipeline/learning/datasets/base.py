"""Define datasets: rows with stable ids in three disjoint splits, and demonstrations for the reference."""

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.config.schema import DatasetConfig
from pipeline.config.tables import DATASETS
from pipeline.config.user_code import import_object, other_arguments
from pipeline.errors import ConfigError, PipelineError, defined_at, told, unknown_name

SPLITS = ("train", "validation", "test")


Message = Mapping[str, Any]
"""One turn of a conversation: ``role`` and ``content``."""

Text = str | Sequence[Message]
"""A prompt or an answer: plain text, or the turns of a conversation."""


@dataclass(frozen=True)
class Row:
    """One row, in TRL's terms: a prompt, answers to it, and further columns, which rewards receive by name.

    Attributes:
        id: Stable id. The random draws of the row's samples are keyed by the id, whatever the position or the
            split.
        prompt: Text, or a conversation that ends where the assistant's answer is due.
        columns: Further columns, for example ``solution``.
        completion: An answer to imitate, if the dataset has one.
        chosen: The preferred one of two answers, if the dataset has preferences.
        rejected: The other one of the two answers.
        whole: Whether prompt and completion are one conversation (`messages`), cut before its last answer.
    """

    id: int
    prompt: Text
    columns: Mapping[str, Any] = field(default_factory=dict)
    completion: Text | None = None
    chosen: Text | None = None
    rejected: Text | None = None
    whole: bool = False

    @property
    def answer(self) -> Text | None:
        """The answer to imitate: the completion, or else the preferred one of two answers."""
        return self.chosen if self.completion is None else self.completion


def plain_text(text: Text) -> str:
    """Show a prompt or an answer to a reader: text as it is, turns as ``role: content`` one per line."""
    if isinstance(text, str):
        return text
    return "\n".join(f"{message['role']}: {message['content']}" for message in text)


class Dataset:
    """Base of every dataset. A subclass calls `split_ids` with its number of rows and implements `row`.

    Attributes:
        vocabulary: Tokens of a model made for this dataset, by id; empty if models have their own vocabulary. All
            but `bos_token` match `symbol_pattern`.
        bos_token: The token that begins every prompt of such a model.
        symbol_pattern: Regular expression that cuts a text into tokens of the vocabulary; one character each,
            unless a dataset says otherwise.
        completion_length: Upper bound on the tokens of a completion, or None.
        fixed_length: Completions have exactly `completion_length` tokens, so a completion of that length is
            complete.
        note: Caveat for a reader of the results, or an empty string.
        prepared: Whether `prepare` reads the rows once and later stages read its output; otherwise rows are made
            from their ids.
        version: Part of the key of every stage that sees the dataset; raise it when the rows change.
        config_class: Settings under ``datasets.<NAME>``.
    """

    vocabulary: Sequence[str] = ()
    bos_token: ClassVar[str] = ""
    symbol_pattern: ClassVar[str] = "."
    completion_length: int | None = None
    fixed_length: bool = False
    note: ClassVar[str] = ""
    prepared: ClassVar[bool] = False
    version: ClassVar[int] = 1
    config_class: ClassVar[type[DatasetConfig]] = DatasetConfig

    def __init__(self, config: DatasetConfig) -> None:
        if not isinstance(config, self.config_class):
            needed = f"{self.config_class.__name__}, not {type(config).__name__}"
            raise ConfigError(f"dataset '{config.kind}' needs {needed}")
        self.config = config
        self._splits: dict[str, NDArray[np.int64]] = {}

    def note_of(self, split: str) -> str:
        """Return the note for a reader of results on a split."""
        return self.note

    def split_ids(self, name: str, total: int) -> None:
        """Split the ids 0 .. total-1 into disjoint splits: slices of one permutation by `config.seed`.

        Raises:
            ConfigError: Nothing is left to train on.
        """
        held_out = self.config.test_size + self.config.validation_size
        if held_out >= total:
            raise ConfigError(
                f"{name}: test_size={self.config.test_size} and validation_size={self.config.validation_size} "
                f"leave nothing of its {total} rows to train on; ask for fewer"
            )
        order = permutation(self.config.seed, 0, total).copy()  # a dataset may change its array of ids
        first, second = self.config.test_size, held_out
        self._splits = {"test": order[:first], "validation": order[first:second], "train": order[second:]}

    def ids(self, split: str) -> NDArray[np.int64]:
        """Return the ids of a split, in the order of the split.

        Raises:
            ConfigError: There is no such split.
        """
        if split not in self._splits:
            own = "" if self._splits else " Its __init__ must call self.split_ids(name, number_of_rows)."
            raise ConfigError(f"{type(self).__name__}: {unknown_name('split', split, self._splits)}{own}")
        return self._splits[split]

    def round_ids(self, seed: int, number: int, count: int) -> NDArray[np.int64]:
        """Return the ids of the training rows of one round of a chain.

        Rounds walk through one permutation of the training split, so they meet different rows until all have
        been used, and then start again.

        Args:
            seed: Seed of the chain.
            number: Round, from 1.
            count: Rows of a round. No row occurs twice in a round, so a round has at most as many rows as the
                split.

        Returns:
            Shape [min(count, rows to train on)].
        """
        train = self.ids("train")
        count = min(count, len(train))
        order = permutation(seed, 1, len(train))
        places = np.arange((number - 1) * count, number * count) % len(train)
        return train[order[places]]

    def example(self) -> Row:
        """Return the first training row; the first test row for a dataset that is only evaluated on."""
        ids = self.ids("train")
        return self.row(int((ids if len(ids) else self.ids("test"))[0]))

    @abstractmethod
    def row(self, row_id: int) -> Row:
        """Return the row with this id."""
        raise NotImplementedError(f"{type(self).__name__} must define row()")

    def demonstration(self, row_id: int, draw: float) -> tuple[str, str]:
        """Return a prompt and a completion for the reference to imitate.

        Args:
            row_id: A training row.
            draw: Uniform in (0, 1); chooses one of several completions of the prompt.
        """
        raise NotImplementedError(f"{type(self).__name__} has no demonstrations, so it needs a model of its own")


@lru_cache(maxsize=8)
def permutation(seed: int, purpose: int, size: int) -> NDArray[np.int64]:
    """Return the numbers 0 .. size-1 in an order that follows from the seed; each purpose has a stream of its own.

    Every stage of a chain asks for the same few permutations, and a million numbers take time: the permutations
    are cached, read-only.
    """
    order = np.random.Generator(np.random.Philox(key=[seed, purpose])).permutation(size)
    order.flags.writeable = False
    return order


# -- registry ----------------------------------------------------------------------------------------------------
# The dataset of a configuration: a shipped one, or the user's own, which is tried on its first row.


def load_dataset(config: DatasetConfig, prepared: Path | None = None) -> Dataset:
    """Create the dataset of a configuration.

    Args:
        config: Configuration of the dataset.
        prepared: Output of `prepare` with the rows of a dataset that is read. Without this output such a dataset
            has settings, but no rows.

    Raises:
        ConfigError: The kind is unknown, `class_path` does not name a `Dataset`, or a setting is wrong.
        DataError: `prepared` holds no prepared dataset.
    """
    if config.class_path is None and config.kind not in DATASETS:
        raise ConfigError(unknown_name("dataset", config.kind, DATASETS))
    path = config.class_path or DATASETS[config.kind]
    kind = import_object(path)
    if config.class_path is not None:
        check_dataset(path, kind)
    if kind.prepared and prepared is not None:
        opened: Dataset = import_object("pipeline.learning.datasets.prepared:PreparedDataset")(prepared)
        return opened
    made: Dataset = kind(config) if config.class_path is None else _own(path, kind, config)
    return made


def check_dataset(path: str, kind: object) -> None:
    """Check the object that a user's dotted path names.

    Raises:
        ConfigError: The object is no dataset, lacks a method, or has one that cannot be called as the pipeline
            calls it.
    """
    if not (isinstance(kind, type) and issubclass(kind, Dataset)):
        raise ConfigError(
            f"'{path}' is no dataset: it must be a subclass of pipeline.Dataset, or of pipeline.FilesDataset for "
            "rows that are read"
        )
    lacks = [name for name in dir(kind) if getattr(getattr(kind, name, None), "__isabstractmethod__", False)]
    if lacks:
        raise ConfigError(f"{path}: it must define {', '.join(f'{name}()' for name in lacks)}")
    for problem in other_arguments(kind):
        raise ConfigError(f"{path}: {problem}")


def _own(path: str, kind: type[Dataset], config: DatasetConfig) -> Dataset:
    """Create a dataset of the user's own, whose code may fail in any way.

    Raises:
        ConfigError: The code failed, gave the train split no rows, or made no `Row` of the first training row.
    """
    try:
        dataset = kind(config)
        first = None if kind.prepared else int(dataset.ids("train")[0])
        row = None if first is None else dataset.row(first)
    except PipelineError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{path} cannot be used with its settings: {told(error)}") from error
    if first is None:
        return dataset
    if not isinstance(row, Row) or row.id != first or not is_text(row.prompt):
        raise ConfigError(
            f"{path}: row({first}) gave {row!r}, but must give Row({first}, prompt, columns), whose prompt is "
            f"text, or a list of messages with role and content{defined_at(kind.row)}"
        )
    return dataset


def is_text(given: Any) -> bool:
    """Return whether a value is text, or the turns of a conversation."""
    turns = isinstance(given, Sequence) and not isinstance(given, str | bytes) and len(given) > 0
    return isinstance(given, str) or (
        turns and all(isinstance(turn, Mapping) and {"role", "content"} <= turn.keys() for turn in given)
    )


def demonstration_length(dataset: Dataset) -> int:
    """Count the tokens of the first demonstration of a dataset, including bos_token.

    Raises:
        ConfigError: The demonstration cannot be made.
    """
    try:
        prompt, completion = dataset.demonstration(int(dataset.ids("train")[0]), 0.01)
        return 1 + len(re.findall(dataset.symbol_pattern, prompt + completion))
    except (Exception, SystemExit) as error:
        raise ConfigError(f"the demonstrations of {type(dataset).__name__} fail: {told(error)}") from error


def check_demonstrations(name: str, dataset: Dataset) -> None:
    """Reject a dataset for which the tiny model cannot be built and trained.

    Args:
        name: Name of the dataset, for messages.
        dataset: The dataset.

    Raises:
        ConfigError: The dataset lacks a vocabulary, a bos_token in the vocabulary, or demonstrations.
    """
    needs = {
        "a vocabulary": len(dataset.vocabulary) > 0,
        "a bos_token in it": bool(dataset.bos_token) and dataset.bos_token in dataset.vocabulary,
        "demonstrations": type(dataset).demonstration is not Dataset.demonstration,
    }
    if lacks := [what for what, there in needs.items() if not there]:
        raise ConfigError(
            f"datasets.{name} with model=tiny: that model is made for its dataset and trained on it, and this one "
            f"lacks {', '.join(lacks)}. Choose a model of your own: model=hf models.hf.path=FOLDER_OR_HUB_ID; "
            f"or evaluate on this one alone: datasets.{name}.trained_on=false"
        )
