"""The dataset of a configuration, one that ships or one of the user's own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.bases import DatasetConfig
from pipeline.config.place import defined_at, place_of
from pipeline.config.shipped import DATASETS
from pipeline.config.user_code import import_object
from pipeline.errors import ConfigError, PipelineError, unknown_name
from pipeline.learning.datasets.base import Dataset, Row
from pipeline.learning.overriding import other_arguments

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
        from pipeline.learning.datasets.prepared import PreparedDataset

        return PreparedDataset(prepared)
    return kind(config) if config.class_path is None else make_dataset(path, kind, config)
