"""How large a model is, told from its files alone: what the bytes that it takes on a disk follow from.

Reads files and imports neither torch nor transformers. `learning.memory.shape` builds a model to count its
weights, which takes seconds; here they are counted in the headers of its files, or by its configuration.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.config.bases import ModelConfig
from pipeline.foreign import ForeignDataError, converted
from pipeline.learning.datasets.base import Dataset
from pipeline.learning.datasets.files import in_cache
from pipeline.learning.models.families import with_weights
from pipeline.learning.models.kinds import TinyModelConfig
from pipeline.plan.estimates import weights_in_name
from pipeline.plan.models import CONFIG, TIED, count_weights, read_config, tensors_in, weight_files

_GATED = {
    *(
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma",
        "gemma2",
        "gemma3_text",
        "phi3",
        "smollm3",
        "granite",
        "olmo2",
    )
}
"""Types of models whose blocks are attention and a gated MLP, all of them alike."""
_TOKENIZER_BYTES = 90
"""Of a token of the vocabulary in the files of a tokenizer: 70 to 130 of those that are widely used."""
_TINY_TOKENIZER = 1000
_HEADER_BYTES = 90
"""Of a tensor in the header of a file of weights."""
_TENSORS = 12
"""Of a block."""
_TOKENIZER_FILES = ("tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json", "chat_template.jinja")


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """What of a model decides how large it is on a disk.

    Attributes:
        weights: All of them; shared ones once.
        output: Those of them that are of an output layer alone, which value models do not have.
        hidden: Width of what the output layer reads; 0 where that is not known.
        vocabulary: Tokens; 0 where that is not known.
        lora_widths: Name of a linear layer -> inputs and outputs of all that are called so, added up; none where
            that is not known. The output layer and the embedding are not among them.
        tokenizer: Bytes of its files.
        headers: Bytes of the headers of its files of weights.
        exact: Whether its weights were counted, rather than guessed from its name or from a quantised file.
    """

    weights: int
    output: int = 0
    hidden: int = 0
    vocabulary: int = 0
    lora_widths: Mapping[str, int] = field(default_factory=dict)
    tokenizer: int = 0
    headers: int = 0
    exact: bool = True

    def written(self, *, whole: bool = True) -> int:
        """Bytes of it as a training saves it, in float32, with its tokenizer.

        Args:
            whole: With its output layer; the backbone of a value model has none.
        """
        return 4 * (self.weights - (0 if whole else self.output)) + self.headers + self.tokenizer

    @property
    def lora_width(self) -> int:
        """As in `learning.memory.fit.ModelShape`; 0 where that is not known."""
        return sum(self.lora_widths.values())

    def adapters(self, rank: int, names: Collection[str] | None = None) -> int:
        """Weights of adapters; a guess where nobody has counted the layers.

        A layer has n * m weights and its adapters rank * (n + m); n and m are the model's width or more.

        Args:
            rank: Of the adapters.
            names: Of the layers that have them; None for all linear ones but the output layer.
        """
        if self.lora_widths:
            chosen = self.lora_widths if names is None else {name.rpartition(".")[2] for name in names}
            outer = self.hidden + self.vocabulary
            return rank * sum(outer if name in TIED else self.lora_widths.get(name, 0) for name in chosen)
        return min(rank * 2 * self.weights // (self.hidden or 1), self.weights)


def reference_size(model: ModelConfig, dataset: Dataset) -> ModelSize | None:
    """The size of a reference policy; None where nothing tells it."""
    if isinstance(model, TinyModelConfig):
        return _tiny(model, len(dataset.vocabulary))
    return None if model.path is None else _of_path(model.path, model.revisions["reference"])


def value_size(model: ModelConfig, reference: ModelSize | None) -> ModelSize | None:
    """The size of what value models are made from: the reference, or the model of `value_path`."""
    return reference if model.value_path is None else _of_path(model.value_path, model.revisions["value"])


def weights_of(model: ModelConfig) -> int:
    """Weights of a reference policy as `count_weights` has them, else by a configuration in the cache; or 0."""
    if (counted := count_weights(model)) or model.path is None:
        return counted
    size = _of_path(model.path, model.revisions["reference"])
    return 0 if size is None else size.weights


def _tiny(model: TinyModelConfig, vocabulary: int) -> ModelSize:
    shape = {"n_embd": model.n_embd, "n_layer": model.n_layer, "n_inner": model.n_inner}
    rest: dict[str, Any] = _gpt2({**shape, "n_positions": model.n_positions, "vocab_size": vocabulary})
    headers = _HEADER_BYTES * (_TENSORS * model.n_layer + 4)
    return ModelSize(**rest, tokenizer=_TINY_TOKENIZER + 30 * vocabulary, headers=headers)


def _of_path(path: str, revision: str | None) -> ModelSize | None:
    path, revision = with_weights(path, revision)
    place, size = Path(path), None
    with suppress(OSError, ForeignDataError):  # then nothing but its name tells
        if place.is_file():  # quantised: how many bits a weight has is not known
            return ModelSize(weights=place.stat().st_size, exact=False)
        file = place / CONFIG if place.is_dir() else in_cache(path, CONFIG, revision)
        size = None if file is None else _of_folder(file)
    if size is None and (guessed := weights_in_name(path)):
        return ModelSize(weights=guessed, exact=False)
    return size


def _of_folder(file: Path) -> ModelSize | None:
    """By the configuration and what is beside it; the weights themselves need not be there.

    Raises:
        ForeignDataError: The configuration is none.
        OSError: Something cannot be read.
    """
    whole = read_config(file)
    inner = whole.get("text_config")
    config = {**whole, **inner} if isinstance(inner, dict) else whole
    counted = _counted(config)
    hidden, vocabulary = _numbers(config, "hidden_size", "vocab_size")
    folder = file.parent
    tokenizer = sum(one.stat().st_size for name in _TOKENIZER_FILES for one in folder.glob(name) if one.is_file())
    rest: dict[str, Any] = {"tokenizer": tokenizer or _TOKENIZER_BYTES * vocabulary}
    rest |= {"hidden": hidden, "vocabulary": vocabulary, "lora_widths": counted.get("lora_widths", {})}
    if tensors := _in_files(folder):
        output = sum(count for name, count in tensors.items() if name.endswith(("lm_head.weight", "lm_head.bias")))
        return ModelSize(
            **rest, weights=sum(tensors.values()), output=output, headers=_HEADER_BYTES * len(tensors)
        )
    return ModelSize(**{**counted, **rest}) if counted else None


def _in_files(folder: Path) -> dict[str, int]:
    """Numbers in every tensor of a folder's files; none where some of the files are not there."""
    try:
        files = weight_files(folder)
    except (OSError, ForeignDataError):
        return {}
    if not all(file.is_file() for file in files):
        return {}
    return {name: count for file in files for name, count in tensors_in(file).items()}


def _counted(config: Mapping[str, Any]) -> dict[str, Any]:
    """Weights by arithmetic, for models that are built like the widespread ones; nothing for others."""
    kind = config.get("model_type")
    try:
        if kind == "gpt2":
            return _gpt2(config)
        return _gated(config) if kind in _GATED else {}
    except ForeignDataError:
        return {}


def _gated(config: Mapping[str, Any]) -> dict[str, Any]:
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    hidden, layers, heads, inner, vocabulary = _numbers(config, *names)
    if not all((hidden, layers, heads, inner, vocabulary)):
        return {}
    queries = heads * (_number(config, "head_dim") or hidden // heads)
    keys = queries // heads * (_number(config, "num_key_value_heads") or heads)
    block = 2 * hidden * queries + 2 * hidden * keys + 3 * hidden * inner + 2 * hidden
    output = 0 if config.get("tie_word_embeddings", True) else vocabulary * hidden
    return {
        "weights": layers * block + vocabulary * hidden + output + hidden,
        "output": output,
        "hidden": hidden,
        "vocabulary": vocabulary,
        "lora_widths": {
            **dict.fromkeys(("q_proj", "o_proj"), layers * (hidden + queries)),
            **dict.fromkeys(("k_proj", "v_proj"), layers * (hidden + keys)),
            **dict.fromkeys(("gate_proj", "up_proj", "down_proj"), layers * (hidden + inner)),
        },
    }


def _gpt2(config: Mapping[str, Any]) -> dict[str, Any]:
    names = ("n_embd", "n_layer", "n_positions", "vocab_size")
    hidden, layers, positions, vocabulary = _numbers(config, *names)
    if not all((hidden, layers, positions, vocabulary)):
        return {}
    inner = _number(config, "n_inner") or 4 * hidden
    block = 4 * hidden * hidden + 2 * hidden * inner + inner + 9 * hidden
    return {
        "weights": layers * block + (vocabulary + positions) * hidden + 2 * hidden,
        "hidden": hidden,
        "vocabulary": vocabulary,
        "lora_widths": {
            "c_attn": layers * 4 * hidden,
            "c_fc": layers * (hidden + inner),
            "c_proj": layers * (2 * hidden + hidden + inner),
        },
    }


def _numbers(config: Mapping[str, Any], *names: str) -> list[int]:
    return [_number(config, name) for name in names]


def _number(config: Mapping[str, Any], name: str) -> int:
    """A size in a configuration; 0 where it has none.

    Raises:
        ForeignDataError: It is no number.
    """
    found = config.get(name)
    if found is None and name == "hidden_size":
        found = config.get("n_embd")
    return 0 if found is None else max(0, converted(found, int))
