"""A reference and the value model that guides it must share one vocabulary: checked before anything starts.

Guidance adds a value to the logit of each candidate token, so token 17 has to mean the same to both models. Only
`tokenizer.json` is read, which takes no torch and no transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pipeline.config.schema import Config, ModelConfig
from pipeline.datasets.registry import load_dataset
from pipeline.errors import ConfigError

FILE = "tokenizer.json"


def check_tokenizers(config: Config) -> None:
    """Refuse model pairs that do not share a tokenizer.

    Raises:
        ConfigError: Says which pair differs, and in what.
    """
    for name, model in config.models.items():
        if model.value_path is None:
            continue
        value = read_vocabulary(f"models.{name}.value_path", model.value_path)
        for reference, vocabulary in _reference_vocabularies(name, model, config):
            difference = _difference(vocabulary, value)
            if difference:
                raise ConfigError(
                    f"models.{name}: the reference ({reference}) and the value model ({model.value_path}) share "
                    f"no tokenizer: {difference}. Choose a value model of the same family, or value_path=null "
                    "for a copy of the reference."
                )


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
    """Token -> id of a model folder, or of a hub id whose tokenizer is in the local cache.

    Raises:
        ConfigError: There is no tokenizer to read.
    """
    file = Path(path) / FILE
    if not file.is_file():
        file = _cached(path) or file
    try:
        loaded = json.loads(file.read_bytes())
        vocabulary = loaded["model"]["vocab"]
        if not isinstance(vocabulary, Mapping):  # unigram models list (token, score) pairs
            vocabulary = {token: index for index, (token, _) in enumerate(vocabulary)}
        added = {token["content"]: token["id"] for token in loaded.get("added_tokens", [])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{key}={path}: cannot read {file} ({type(error).__name__}). Give the folder of a model saved by "
            "save_pretrained together with its tokenizer."
        ) from error
    return {**vocabulary, **added}


def _cached(repo: str) -> Path | None:
    if repo.count("/") != 1 or repo.startswith(("/", ".")):
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo, FILE)
    return Path(found) if isinstance(found, str) else None


def _difference(one: Mapping[str, int], other: Mapping[str, int]) -> str:
    if one == other:
        return ""
    if len(one) != len(other):
        return f"{len(one)} tokens against {len(other)}"
    token = next(token for token in one if one[token] != other.get(token))
    theirs = f"id {other[token]}" if token in other else "missing"
    return f"token {token!r} has id {one[token]} in the one and is {theirs} in the other"
