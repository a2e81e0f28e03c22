"""Base of datasets whose rows are in files or on the hub: where they are, and how a row is made of what is found.

`prepare` reads such a dataset once; chains open what it wrote.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.config.bases import BY_CONTENT, DatasetConfig, file_or_folder, hint, model_text, number
from pipeline.errors import ConfigError, DataError
from pipeline.files import file_sha256
from pipeline.learning.datasets.base import Dataset, Row
from pipeline.learning.datasets.columns import check_settings, make_row, renamed
from pipeline.learning.datasets.files import TABLES, TEXT, HubDataset, LocalFiles, Location, format_of, locate

if TYPE_CHECKING:
    from pipeline.learning.datasets.readers import Record


@dataclass(kw_only=True)
class FilesConfig(DatasetConfig):
    """Rows read from files or from the Hugging Face hub, in TRL's columns; docs/datasets.md has examples."""

    test_size: int = number(500, at_least=1, at_most=1_000_000_000)
    """Test prompts at most. Taken from the test split where the source has one, else cut from train."""
    validation_size: int = number(500, at_least=1, at_most=1_000_000_000)
    """Validation prompts at most, likewise."""
    path: str | None = file_or_folder(None, affects_result=False, keyed=BY_CONTENT)
    """File, folder or hub id. Results depend on the content, not on where it is."""
    validation_path: str | None = file_or_folder(None, affects_result=False, keyed=BY_CONTENT)
    """A source of its own for validation; null looks in `path`."""
    test_path: str | None = file_or_folder(None, affects_result=False, keyed=BY_CONTENT)
    """A source of its own for the test split; null looks in `path`."""
    subset: str | None = None
    """Configuration of the hub's dataset, or the folder of that name inside a local one."""
    revision: str | None = hint(None, keyed=BY_CONTENT)
    """Commit, tag or branch of `path` on the hub; null takes the newest."""
    train_split: str | None = None
    """Name of the split to train on; null takes `train`, or the only one there is."""
    validation_split: str | None = None
    """Null takes `validation` where there is one, else cuts it from train."""
    test_split: str | None = None
    """Null takes `test` where there is one, else cuts it from train."""
    columns: dict[str, str] = field(default_factory=dict)
    """Our name -> the file's name, for columns that are called otherwise: {prompt: question}."""
    further_columns: list[str] | None = None
    """Columns kept for rewards besides TRL's own; null keeps all."""
    prompt_template: str | None = model_text(None)
    """Text of the prompt with columns in braces, such as 'Q: {prompt} A:'; null takes the prompt as it is. Typed
    on the command line, a backslash and an n are a line break."""
    chat: bool = False
    """Make a prompt of text the user's turn of a conversation, so that the model's chat template is applied."""
    system_prompt: str | None = model_text(None)
    """First message of every conversation, in the place of its own; null leaves that. Line breaks as in
    `prompt_template`."""
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the model's chat template, as {enable_thinking: false}; a column of that name goes before."""
    date: str | None = None
    """Today's date, as 2026-11-27, for chat templates that ask for it; null tells them 2024-07-26 on any day."""
    limit: int | None = number(None, at_least=1, at_most=1_000_000_000, hint=", or null to read all")
    """Rows read of each split at most; null reads all."""


STEP_BY_STEP = "{prompt}\nPlease reason step by step, and put your final answer within \\boxed{{}}."


PATHS = ("path", "validation_path", "test_path")


class FilesDataset(Dataset):
    """A subclass says in `adapt` what its columns mean.

    Attributes:
        formats: Suffixes of files that it reads.
        hub: Whether `path` may be an id of the Hugging Face hub.
    """

    prepared = True
    config_class: ClassVar[type[DatasetConfig]] = FilesConfig
    formats: ClassVar[tuple[str, ...]] = TABLES
    hub: ClassVar[bool] = True

    def __init__(self, config: FilesConfig) -> None:
        super().__init__(config)
        self.source = config
        if not config.path:
            what = "a file, folder or hub id" if self.hub else "a file or folder"
            raise ConfigError(f"dataset '{config.kind}': path is missing; give {what}")
        check_settings(config)

    def locations(self) -> dict[str, Location]:
        """Where the rows are, by the name of the setting: ``path``, and the others where they are set.

        Raises:
            DataError: A local file is not there, or holds nothing that can be read.
        """
        given = {name: getattr(self.source, name) for name in PATHS}
        found: dict[str, Location] = {}
        for name, path in given.items():
            if path:
                # Subset and revision belong to the main source.
                subset, revision = (self.source.subset, self.source.revision) if name == "path" else (None, None)
                found[name] = locate(path, self.formats, hub=self.hub, subset=subset, revision=revision)
        return found

    def adapt(self, data: Mapping[str, Any], place: str) -> Mapping[str, Any] | None:  # noqa: ARG002 - for subclasses
        """Turn a row's columns into TRL's and further ones for rewards; None leaves the row out.

        Args:
            data: The file's columns, renamed as the configuration says.
            place: Of the row, for messages.
        """
        return data

    def make_row(self, row_id: int, record: Record) -> Row | None:
        """A row of ours of one that was read, or None where it is left out.

        Raises:
            DataError: The row lacks what it needs.
        """
        data = renamed(record.data, self.source.columns, record.place)
        adapted = self.adapt(data, record.place)
        return None if adapted is None else make_row(row_id, adapted, record.place, self.source, data)

    def row(self, row_id: int) -> Row:  # noqa: ARG002 - known only once the rows have been read
        """Refused: see `PreparedDataset`."""
        raise DataError(f"dataset '{self.config.kind}' is read once by `prepare`, then by PreparedDataset")


# -- fingerprint -------------------------------------------------------------------------------------------------
# What identifies the source of a dataset in a plan: the content of local files, or the id on the hub. Used
# while planning, so it imports neither `datasets` nor pyarrow.


_FOLLOWED = partial(file_sha256, follow=True)  # caches of a hub hold links


def source_fingerprint(dataset: Dataset, file_hash: Callable[[Path], str] = _FOLLOWED) -> dict[str, Any]:
    """What the rows of a dataset follow from, besides its configuration; the same wherever files are kept.

    Args:
        dataset: It.
        file_hash: Hash of a file's content; a caller that remembers hashes gives one of its own.

    Returns:
        Plain data; empty for datasets that are made rather than read.

    Raises:
        DataError: A local file is not there or may not be read, or there is nothing to read in a folder.
    """
    if not isinstance(dataset, FilesDataset):
        return {}
    try:
        return {name: _identity(location, file_hash) for name, location in dataset.locations().items()}
    except OSError as error:
        raise DataError(
            f"dataset '{dataset.config.kind}': cannot read {error.filename or dataset.source.path} "
            f"({error.strerror}). See that you may read it, and enter the folders that it is in."
        ) from error


def _identity(location: Location, file_hash: Callable[[Path], str]) -> dict[str, Any]:
    if isinstance(location, HubDataset):
        return {"hub": location.repo, "subset": location.subset, "revision": location.revision}
    return _content(location, file_hash)


def _content(files: LocalFiles, file_hash: Callable[[Path], str]) -> dict[str, Any]:
    whole = hashlib.sha256()
    count = size = 0
    for split, paths in sorted(files.splits.items()):
        for path in paths:
            length = path.stat().st_size
            # The folder of a text file may be its label.
            form = f"{format_of(path)}/{path.parent.name}" if format_of(path) in TEXT else format_of(path)
            whole.update(f"{split} {form} {length} {file_hash(path)}\n".encode())
            count, size = count + 1, size + length
    return {"files": count, "bytes": size, "sha256": whole.hexdigest()}
