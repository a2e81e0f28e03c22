"""What must fit between tokenizers, models and datasets: checked before anything starts.

Guidance adds a value to the logit of each candidate token, so token 17 has to mean the same to the reference and
to the value model that guides it; and a conversation needs a chat template. Only files beside the weights are
read, or the head of a GGUF file, which takes no torch and no transformers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.config.bases import ModelConfig
from pipeline.config.schema import Config
from pipeline.errors import ConfigError
from pipeline.foreign import ForeignDataError, read_model_json
from pipeline.learning.datasets.from_files import FilesConfig
from pipeline.learning.datasets.hub import in_cache
from pipeline.learning.datasets.registry import check_demonstrations, demonstration_length, load_dataset
from pipeline.learning.models.adapter_folder import is_adapters, tokenizer_place
from pipeline.learning.models.kinds import TinyModelConfig
from pipeline.plan.models import CONFIG, is_gguf, read_config, reason

FILE = "tokenizer.json"
TOKENS = "tokenizer.ggml.tokens"
SETTINGS = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
TEMPLATES = "additional_chat_templates"
LARGEST_TOKENIZER = 500_000_000
"""Bytes; the largest known ones have some tens of millions."""
_OF_TOKENIZERS = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "tekken.json", "*token*.py")
"""What the files that hold a tokenizer's vocabulary are called, whichever library made it."""


def check_tokenizers(config: Config) -> None:
    """Refuse model pairs that do not share a tokenizer, and datasets that no model can be made for.

    Raises:
        ConfigError: Says which pair differs, and in what.
    """
    for name, model in config.models.items():
        if isinstance(model, TinyModelConfig):
            for dataset, section in config.datasets.items():
                made = load_dataset(section)
                check_demonstrations(dataset, made)
                length = demonstration_length(made)
                if length > model.n_positions:
                    raise ConfigError(
                        f"models.{name}.n_positions={model.n_positions}: a prompt of datasets.{dataset} and its "
                        f"completion are {length} tokens; set models.{name}.n_positions={length} or more."
                    )
        if model.path is not None:
            given, folder = f"models.{name}.path", Path(tokenizer_place(model.path, None).path)
            if folder.is_dir():
                _check_there(f"{given}={model.path}", folder)
            # With adapters may come more tokens than their base has.
            if (folder / FILE).is_file() and not is_adapters(model.path):
                _check_rows(f"{given}={folder}", model.path, read_vocabulary(given, model.path))
        if model.value_path is None:
            continue
        value = read_vocabulary(f"models.{name}.value_path", model.value_path)
        if not is_adapters(model.value_path):
            _check_rows(f"models.{name}.value_path={model.value_path}", model.value_path, value)
        for reference, vocabulary in _reference_vocabularies(name, model, config):
            difference = _difference(vocabulary, value)
            if difference:
                raise ConfigError(
                    f"models.{name}: the reference ({reference}) and the value model ({model.value_path}) share "
                    f"no tokenizer: {difference}. Choose a value model of the same family, or value_path=null "
                    "for a copy of the reference."
                )


def _check_there(given: str, folder: Path) -> None:
    """Refuse the folder of a model that was saved without its tokenizer."""
    there = {file.name for name in _OF_TOKENIZERS for file in folder.glob(name)} - {SETTINGS}
    if not there:
        raise ConfigError(
            f"{given}: the folder holds no tokenizer ({FILE}, tokenizer.model, vocab.json, ...). Save that of the "
            "model beside it, with save_pretrained of the tokenizer."
        )


def _check_rows(given: str, path: str, vocabulary: Mapping[str, int]) -> None:
    """Refuse a model that has no weights for some tokens of its tokenizer, as one to which tokens were added."""
    file = Path(path) / CONFIG
    file = file if file.is_file() else in_cache(path, CONFIG) or file
    try:
        config = read_config(file)
    except (OSError, ForeignDataError):
        return  # of a GGUF file; what is wrong with others is told where models are checked
    inner = config.get("text_config")
    rows = (inner if isinstance(inner, dict) else config).get("vocab_size")
    tokens = max(vocabulary.values(), default=-1) + 1
    if isinstance(rows, int) and rows < tokens:
        raise ConfigError(
            f"{given}: its tokenizer has {tokens:,} tokens and its embedding {rows:,} rows, so it cannot read "
            "all of them. Choose another model, or save this one after resize_token_embeddings of transformers."
        )


def check_chat_templates(config: Config, conversations: Collection[str] = ()) -> None:
    """Refuse a model without a chat template for a dataset of conversations.

    Args:
        config: The request.
        conversations: Names of datasets whose rows are known to be conversations. Of others it is known where
            their text is made one.

    Raises:
        ConfigError: Names the model and the dataset.
    """
    for name, section in config.datasets.items():
        if isinstance(section, FilesConfig) and section.chat:
            said = f"datasets.{name}.chat=true makes prompts conversations"
            instead = f"datasets.{name}.chat=false"
        elif name in conversations:
            said, instead = f"the prompts of datasets.{name} are conversations", "prompts of text"
        else:
            continue
        for model_name, model in config.models.items():
            if model.path is not None and has_chat_template(model.path) is False:
                raise ConfigError(
                    f"{said}, but models.{model_name}.path={model.path} has no chat template. Choose an instruct "
                    f"model, or {instead}."
                )


def has_chat_template(path: str) -> bool | None:
    """Whether a model brings a chat template; None where that is only known once it is fetched from the hub."""
    if is_gguf(path):
        return "tokenizer.chat_template" in _gguf(path).fields
    folder = Path(tokenizer_place(path, None).path)
    if not folder.is_dir():
        return None
    try:
        settings = read_config(folder / SETTINGS)
    except (OSError, ForeignDataError):
        settings = {}
    return (folder / TEMPLATE).is_file() or (folder / TEMPLATES).is_dir() or bool(settings.get("chat_template"))


def _reference_vocabularies(name: str, model: ModelConfig, config: Config) -> list[tuple[str, dict[str, int]]]:
    if model.path is not None:
        return [(model.path, read_vocabulary(f"models.{name}.path", model.path))]
    # A model that is trained in the run has the vocabulary of its dataset.
    return [
        (
            f"made for {dataset}",
            {token: index for index, token in enumerate(load_dataset(section).vocabulary)},
        )
        for dataset, section in config.datasets.items()
    ]


def read_vocabulary(key: str, path: str) -> dict[str, int]:
    """Token -> id of a model folder, of a GGUF file, or of a hub id whose tokenizer is in the local cache.

    Raises:
        ConfigError: There is no tokenizer to read.
    """
    if is_gguf(path):
        return {token: index for index, token in enumerate(_gguf(path).fields[TOKENS].contents())}
    place = tokenizer_place(path, None).path
    file = Path(place) / FILE
    if not file.is_file():
        file = in_cache(place, FILE) or file
    try:
        found = read_model_json(file, _Tokenizer, LARGEST_TOKENIZER)
    except (OSError, ForeignDataError) as error:
        raise ConfigError(
            f"{key}={path}: cannot read {file} ({reason(error)}). Give the folder of a model saved by "
            "save_pretrained together with its tokenizer."
        ) from error
    vocabulary = found.model.vocab
    if not isinstance(vocabulary, dict):  # unigram models list tokens with their scores
        vocabulary = {token: index for index, (token, _) in enumerate(vocabulary)}
    return {**vocabulary, **{token.content: token.id for token in found.added_tokens}}


@dataclass(frozen=True)
class _Added:
    content: str
    id: int


@dataclass(frozen=True)
class _Vocabulary:
    vocab: dict[str, int] | list[tuple[str, float]]


@dataclass(frozen=True)
class _Tokenizer:
    """What of a tokenizer's file is read here."""

    model: _Vocabulary
    added_tokens: list[_Added] = field(default_factory=list)


@cache
def _gguf(path: str) -> Any:
    """What the head of a GGUF file says; it takes some seconds to read."""
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except Exception as error:  # whatever a wrong byte leads it to
        raise ConfigError(
            f"{path}: cannot be read as a GGUF file ({type(error).__name__}). Get it again."
        ) from error


def _difference(one: Mapping[str, int], other: Mapping[str, int]) -> str:
    if one == other:
        return ""
    if len(one) != len(other):
        return f"{len(one)} tokens against {len(other)}"
    token = next(token for token in one if one[token] != other.get(token))
    theirs = f"id {other[token]}" if token in other else "missing"
    return f"token {token!r} has id {one[token]} in the one and is {theirs} in the other"
