"""What a dataset is: rows with stable ids in three disjoint splits, and demonstrations for a reference."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeline.config.bases import DatasetConfig
from pipeline.config.place import defined_at, place_of
from pipeline.config.shipped import DATASETS
from pipeline.config.user_code import import_object
from pipeline.errors import ConfigError, PipelineError, unknown_name
from pipeline.learning.overriding import other_arguments

SPLITS = ("train", "validation", "test")


Message = Mapping[str, Any]
"""One turn of a conversation: ``role`` and ``content``."""

Text = str | Sequence[Message]
"""A prompt or an answer: plain text, or the turns of a conversation."""


@dataclass(frozen=True)
class Row:
    """One row, in TRL's terms: a prompt, answers to it, and further columns that rewards are given by name.

    Attributes:
        id: Stable id. Draws of its samples are keyed by it, whatever the position or the split.
        prompt: Text, or a conversation that ends where an answer is due.
        columns: Further columns, for example ``solution``.
        completion: An answer to imitate, where the dataset has one.
        chosen: The preferred of two answers, where the dataset has preferences.
        rejected: The other of the two.
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
        """What there is to imitate: the completion, or else the preferred of two answers."""
        return self.chosen if self.completion is None else self.completion


def plain_text(text: Text) -> str:
    """A prompt or an answer as a reader sees it: text as it is, turns as ``role: content`` one below the other."""
    if isinstance(text, str):
        return text
    return "\n".join(f"{message['role']}: {message['content']}" for message in text)


class Dataset:
    """Base of every dataset. A subclass calls `split_ids` with its number of rows and implements `row`.

    Attributes:
        vocabulary: Tokens of a model made for this dataset, by id; empty where models bring their own. All but
            `bos_token` match `symbol_pattern`.
        bos_token: The token that begins every prompt of such a model.
        symbol_pattern: Regular expression that cuts a text into tokens of the vocabulary; one character each,
            unless a dataset says otherwise.
        completion_length: Upper bound on the tokens of a completion, or None.
        fixed_length: Completions have exactly `completion_length` tokens, so one that is cut there is whole.
        note: What a reader of results must know, or an empty string.
        prepared: Rows are read once by `prepare` and then from its output; others are made from their ids.
        version: Part of every key of a stage that sees the dataset; raise it when rows would change.
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

    def split_ids(self, name: str, total: int) -> None:
        """Deal the ids 0 .. total-1 into disjoint splits: one permutation by `config.seed`, cut into slices.

        Raises:
            ConfigError: Nothing is left to train on.
        """
        held_out = self.config.test_size + self.config.validation_size
        if held_out >= total:
            raise ConfigError(
                f"{name}: test_size={self.config.test_size} and validation_size={self.config.validation_size} "
                f"leave nothing of its {total} rows to train on; ask for fewer"
            )
        order = permutation(self.config.seed, 0, total).copy()  # a dataset may do with its ids as it likes
        first, second = self.config.test_size, held_out
        self._splits = {"test": order[:first], "validation": order[first:second], "train": order[second:]}

    def ids(self, split: str) -> NDArray[np.int64]:
        """Ids of a split, in its order.

        Raises:
            ConfigError: There is no such split.
        """
        if split not in self._splits:
            raise ConfigError(f"{type(self).__name__}: " + unknown_name("split", split, self._splits))
        return self._splits[split]

    def round_ids(self, seed: int, number: int, count: int) -> NDArray[np.int64]:
        """Ids of the training rows of one round of a chain.

        Rounds walk through one permutation of the training split, so they meet different rows until all have
        been used, and then start again.

        Args:
            seed: Seed of the chain.
            number: Round, from 1.
            count: Rows of a round. A round never has a row twice, so it is as long as the split at most.

        Returns:
            Shape [min(count, rows to train on)].
        """
        train = self.ids("train")
        count = min(count, len(train))
        order = permutation(seed, 1, len(train))
        places = np.arange((number - 1) * count, number * count) % len(train)
        return train[order[places]]

    @abstractmethod
    def row(self, row_id: int) -> Row:
        """The row of an id."""
        raise NotImplementedError(f"{type(self).__name__} must define row()")

    def demonstration(self, row_id: int, draw: float) -> tuple[str, str]:
        """A prompt and a completion for the reference to imitate.

        Args:
            row_id: A training row.
            draw: Uniform in (0, 1): which of several ways to complete it is shown.
        """
        raise NotImplementedError(f"{type(self).__name__} has no demonstrations, so it needs a model of its own")


@lru_cache(maxsize=8)
def permutation(seed: int, purpose: int, size: int) -> NDArray[np.int64]:
    """The numbers 0 .. size-1 in an order that follows from the seed; each purpose has a stream of its own.

    Every stage of a chain asks for the same few, and a million numbers take a while: they are kept, read-only.
    """
    order = np.random.Generator(np.random.Philox(key=[seed, purpose])).permutation(size)
    order.flags.writeable = False
    return order


# -- registry ----------------------------------------------------------------------------------------------------
# The dataset of a configuration, one that ships or one of the user's own.


# -- validate ----------------------------------------------------------------------------------------------------
# What a dataset must fulfil before anything is planned with it; one of the user's own is tried on a few rows.


_ROWS = 8
_DRAWS = (0.01, 0.5, 0.99)


def check_dataset(path: str, kind: object) -> type[Dataset]:
    """Check what a dotted path has led to.

    Raises:
        ConfigError: It is no dataset, lacks a method, or has one that cannot be called as it will be.
    """
    if not (isinstance(kind, type) and issubclass(kind, Dataset)):
        raise ConfigError(
            f"'{path}' is no dataset: it must be a subclass of pipeline.learning.datasets.base.Dataset, or of "
            "pipeline.learning.datasets.from_files.FilesDataset for rows that are read"
        )
    lacks = [name for name in dir(kind) if getattr(getattr(kind, name, None), "__isabstractmethod__", False)]
    if lacks:
        raise ConfigError(f"{path}: it must define {', '.join(f'{name}()' for name in lacks)}")
    if not isinstance(kind.version, int) or isinstance(kind.version, bool):
        raise ConfigError(f"{path}: its version is {kind.version!r}, but must be a whole number")
    for problem in other_arguments(kind):
        raise ConfigError(f"{path}: {problem}")
    return kind


def make_dataset(path: str, kind: type[Dataset], config: DatasetConfig) -> Dataset:
    """A dataset of the user's own, whose code may fail in any way.

    Raises:
        ConfigError: It failed, dealt no rows, or made no `Row` of the first of them.
    """
    try:
        dataset = kind(config)
        row = None if kind.prepared or not _has_rows(dataset) else dataset.row(int(dataset.ids("train")[0]))
    except PipelineError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{path} cannot be used with its settings: {_told(error)}") from error
    for problem in _odd_attributes(dataset):
        raise ConfigError(f"{path}{defined_at(kind)}: {problem}")
    if kind.prepared:
        return dataset
    if not _has_rows(dataset):
        raise ConfigError(
            f"{path}: its __init__ must call super().__init__(config), then self.split_ids(name, number_of_rows)"
        )
    first = int(dataset.ids("train")[0])
    if not isinstance(row, Row) or row.id != first:
        raise ConfigError(f"{path}: row({first}) gave {row!r}, but must give Row({first}, prompt, columns)")
    if not _is_text(row.prompt):
        raise ConfigError(
            f"{path}: row({first}) gave the prompt {row.prompt!r}, but a prompt must be text, or a list of "
            f"messages with role and content{defined_at(kind.row)}"
        )
    return dataset


def demonstration_length(dataset: Dataset) -> int:
    """Tokens of the first demonstration of a dataset, its bos_token included."""
    prompt, completion = dataset.demonstration(int(dataset.ids("train")[0]), _DRAWS[0])
    return 1 + len(re.findall(dataset.symbol_pattern, prompt + completion))


def check_demonstrations(name: str, dataset: Dataset) -> None:
    """Refuse a dataset that the embedded model cannot be made for and trained on.

    Args:
        name: Of the dataset, for messages.
        dataset: The dataset.

    Raises:
        ConfigError: Says what it lacks.
    """
    lacks = [
        what
        for what, there in {
            "a vocabulary": len(dataset.vocabulary) > 0,
            "a bos_token": bool(dataset.bos_token),
            "demonstrations": type(dataset).demonstration is not Dataset.demonstration,
        }.items()
        if not there
    ]
    if lacks:
        raise ConfigError(
            f"datasets.{name} with model=tiny: that model is made for its dataset and trained on it, and this one "
            f"lacks {', '.join(lacks)}. Choose a model of your own: model=hf models.hf.path=FOLDER_OR_HUB_ID"
        )
    if dataset.bos_token not in dataset.vocabulary:
        raise ConfigError(f"datasets.{name}: its vocabulary lacks its bos_token {dataset.bos_token!r}")
    if dataset.config.class_path is not None and (problem := next(_problems(dataset), None)):
        raise ConfigError(f"datasets.{name}: {problem}")


def _problems(dataset: Dataset) -> Iterator[str]:
    """What is wrong with a few demonstrations: they must have equal lengths, and known tokens alone."""
    pattern, known = re.compile(dataset.symbol_pattern), set(dataset.vocabulary)
    sizes: dict[tuple[int, int], tuple[str, str]] = {}
    for row_id in dataset.ids("train")[:_ROWS]:
        for draw in _DRAWS:
            try:
                shown = dataset.demonstration(int(row_id), draw)
            except (Exception, SystemExit) as error:
                yield f"demonstration({row_id}, {draw}) failed: {_told(error)}"
                return
            if not _is_pair(shown):
                where = defined_at(type(dataset).demonstration)
                yield f"demonstration({row_id}, {draw}) gave {shown!r}, but must give two texts{where}"
                return
            prompt, completion = shown
            tokens = [pattern.findall(text) for text in (prompt, completion)]
            if odd := [token for token in (*tokens[0], *tokens[1]) if token not in known]:
                yield f"the demonstration {shown} has {odd[0]!r}, which is not in its vocabulary"
            if dataset.completion_length is not None and len(tokens[1]) > dataset.completion_length:
                yield f"the demonstration {shown} is longer than completion_length={dataset.completion_length}"
            sizes.setdefault((len(tokens[0]), len(tokens[1])), shown)
    if len(sizes) > 1:
        yield (
            f"the demonstrations {' and '.join(map(str, list(sizes.values())[:2]))} differ in their numbers of "
            "tokens; model=tiny needs prompts of equal length, and completions too"
        )


def _odd_attributes(dataset: Dataset) -> Iterator[str]:
    """What is wrong with the attributes that a class, or its `__init__`, sets."""
    vocabulary: Any = dataset.vocabulary
    if not isinstance(vocabulary, Sequence) or not all(isinstance(token, str) for token in vocabulary):
        yield f"its vocabulary is {vocabulary!r}, but must be a tuple of texts"
    elif twice := [token for token, count in Counter(vocabulary).items() if count > 1]:
        yield f"its vocabulary has {twice[0]!r} twice"
    length: object = dataset.completion_length
    if length is not None and (not isinstance(length, int) or isinstance(length, bool) or length < 1):
        yield f"its completion_length is {length!r}, but must be a whole number of at least 1, or None"
    try:
        re.compile(dataset.symbol_pattern)
    except (re.error, TypeError) as error:
        yield f"its symbol_pattern is {dataset.symbol_pattern!r}, which is no regular expression ({error})"


def _is_text(given: Any) -> bool:
    if isinstance(given, str):
        return True
    turns = isinstance(given, Sequence) and not isinstance(given, bytes) and len(given) > 0
    return turns and all(isinstance(turn, Mapping) and {"role", "content"} <= turn.keys() for turn in given)


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(text, str) for text in given)


def _told(error: BaseException) -> str:
    return f"{place_of(error)}{type(error).__name__}: {error}"


def _has_rows(dataset: Dataset) -> bool:
    try:
        return len(dataset.ids("train")) > 0
    except (AttributeError, ConfigError):  # the base's __init__ was not called, or no rows were dealt
        return False


def load_dataset(config: DatasetConfig, prepared: Path | None = None) -> Dataset:
    """Make the dataset of a configuration.

    Args:
        config: Of the dataset.
        prepared: What `prepare` wrote, from which the rows of a dataset that is read are taken. Without it such
            a dataset has settings, but no rows.

    Raises:
        ConfigError: The kind is unknown, `class_path` does not name a `Dataset`, or a setting is wrong.
        DataError: `prepared` holds no prepared dataset.
    """
    if config.class_path is None and config.kind not in DATASETS:
        raise ConfigError(unknown_name("dataset", config.kind, DATASETS))
    path = config.class_path or DATASETS[config.kind]
    kind = check_dataset(path, import_object(path))
    if kind.prepared and prepared is not None:
        opened: Dataset = import_object("pipeline.learning.datasets.prepared:PreparedDataset")(prepared)
        return opened
    return kind(config) if config.class_path is None else make_dataset(path, kind, config)
