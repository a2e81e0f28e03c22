"""Define kinds of models: their settings, and checks of a model's files, before a request starts and when loaded.

Imports neither torch nor transformers.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pipeline.config import plain, schema
from pipeline.config.meaning import settings_of
from pipeline.errors import ConfigError, JobError, unknown_name
from pipeline.files import at_home
from pipeline.foreign import ForeignDataError, read_model_json

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

BITS = {"8bit": "a byte for each weight of linear layers", "4bit": "half of that (NF4)"}


@dataclass(kw_only=True)
class HFModelConfig(schema.ModelConfig):
    """A causal language model of the Hugging Face ecosystem; docs/models.md has examples."""

    revision: str | None = schema.hint(None, keyed=schema.BY_CONTENT)
    """Commit, tag or branch of `path` on the hub; null takes the newest."""
    value_revision: str | None = schema.hint(None, keyed=schema.BY_CONTENT)
    """The same for `value_path`."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Only for models whose code you have read."""
    quantization: str | None = schema.one_of(None, BITS, affects_result=False, keyed="where it is given")
    """Bits of a weight while the frozen reference draws and scores, by bitsandbytes (docs/models.md); null keeps
    weights in `system.dtype`. Part of the keys of what is drawn so, and of the model's name in results."""

    @property
    def in_bits(self) -> int | None:
        """Return the bits of `quantization`."""
        return None if self.quantization is None else int(self.quantization.removesuffix("bit"))

    @property
    def trusts_code(self) -> bool:
        """Return `trust_remote_code`."""
        return self.trust_remote_code

    @property
    def revisions(self) -> Mapping[str, str | None]:
        """Return both revisions by role."""
        return {"reference": self.revision, "value": self.value_revision}

    def problems(self, key: str, config: schema.Config) -> Iterator[str]:
        """Report a missing path."""
        if not self.path:
            yield f"{key}.path is missing: a model of kind 'hf' needs a folder or hub id"


@dataclass(kw_only=True)
class TinyModelConfig(schema.ModelConfig):
    """A GPT-2 of some 76,000 parameters, trained in the run on the dataset's demonstrations."""

    is_trained: ClassVar[bool] = True

    seed: int | None = schema.number(None, at_least=0, at_most=schema.LARGEST_SEED)
    """Of initialisation and training, of one reference that all seeds of the experiment share; null is 0."""
    seeds: list[int] | None = schema.number(
        None,
        at_least=0,
        at_most=schema.LARGEST_SEED,
        affects_result=False,
        keyed="as each is a reference of its own",
    )
    """Several references instead of the one of `seed`, each with chains of its own for every seed of the
    experiment. A stage sees the `seed` of its own reference alone."""
    n_embd: int = schema.number(64, at_least=1, at_most=2048)
    """Width; the heads share it, so n_head must divide it."""
    n_layer: int = schema.number(2, at_least=1, at_most=48)
    """Layers."""
    n_head: int = schema.number(4, at_least=1, at_most=128)
    """Heads of attention in each layer."""
    n_inner: int = schema.number(128, at_least=1, at_most=8192)
    """Width inside of each layer's MLP."""
    n_positions: int = schema.number(128, at_least=1, at_most=16_384)
    """Tokens of a prompt and its completion at most."""
    steps: int = schema.number(1000, at_least=0, at_most=1_000_000_000)
    """Optimizer steps of its training; 0 leaves it random."""
    batch_size: int = schema.number(128, at_least=1, at_most=1_000_000)
    """Demonstrations per optimizer step."""
    learning_rate: float = schema.number(3e-3, above=0, at_most=schema.LARGEST_RATE)
    """Of the optimizer, at its highest."""
    optimizer: schema.Optimizer = schema.option(schema.Optimizer.adamw)
    """Of its training; with `muon` a model learns far sooner to look things up in its prompt (docs/papers.md)."""
    warmup_steps: int = schema.number(100, at_least=0, at_most=1_000_000_000)
    """Steps over which the learning rate rises to its full value."""

    @property
    def weights(self) -> int:
        """Weights of the layers and positions; a vocabulary of symbols adds few."""
        return self.n_embd * (self.n_layer * (4 * self.n_embd + 2 * self.n_inner) + self.n_positions)

    @property
    def demonstrations(self) -> int:
        """Number of demonstrations in all steps."""
        return self.steps * self.batch_size

    @property
    def references(self) -> Sequence[int]:
        """Seeds of the references, in the order of their chains."""
        return [self.seed or 0] if self.seeds is None else self.seeds

    def with_reference(self, reference: int | None) -> TinyModelConfig:
        """Return the model with only one reference."""
        return replace(self, seed=reference, seeds=None)

    def problems(self, key: str, config: schema.Config) -> Iterator[str]:
        """Report references named twice or not at all, a width that heads cannot share, and moments in 8 bits."""
        if self.seeds is not None and self.seed is not None:
            yield (
                f"{key}.seed={self.seed} and {key}.seeds={plain.brief(self.seeds)} both say which references "
                f"there are: give one of them. {key}.seeds=[{self.seed}] is the same as {key}.seed={self.seed}"
            )
        if self.seeds == []:
            yield f"{key}.seeds is empty: give at least one, for example {key}.seeds=[0]"
        if self.optimizer is schema.Optimizer.adamw_8bit:
            yield f"{key}.optimizer=adamw_8bit saves memory that a tiny model does not need: use adamw or muon"
        if self.n_embd % self.n_head:
            yield (
                f"{key}.n_embd={self.n_embd}: must be a multiple of {key}.n_head={self.n_head}, which share it, "
                f"for example {max(1, self.n_embd // self.n_head) * self.n_head}"
            )

    def idle(self, setting: str) -> str:
        """Report a path as unused, since this model reads no files."""
        return (
            ""
            if setting != "path"
            else (
                "a model of kind tiny is trained in the run and reads no files; for one that is read use model=hf "
                "models.hf.path=FOLDER_OR_HUB_ID"
            )
        )


# -- reward models -----------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class RewardModelSettings:
    """Settings of a reward model, under ``grading.options.<name>``.

    Attributes:
        path: Folder or hub id.
        label: The class whose score counts, by name or index; None for a model with one output.
        output: ``logit`` as the model returns it; ``probability`` and ``log_odds`` of `label` among all classes,
            or, for a single output, its sigmoid and the output itself. None takes ``logit`` for a single output,
            else ``probability``.
        pair: Encode prompt and completion as the two segments of a pair, as in the training of some reward models.
        with_prompt: False scores only the completion.
        batch_size: Texts per batch.
        max_length: Tokens; longer texts lose their beginning. None for the limit of the model.
        dtype: Type of weights and activations.
    """

    path: str = ""
    label: str | int | None = None
    output: str | None = schema.one_of(None, dict.fromkeys(("logit", "probability", "log_odds"), ""))
    pair: bool = False
    with_prompt: bool = True
    batch_size: int = schema.number(32, at_least=1)
    max_length: int | None = schema.number(None, at_least=1)
    dtype: str = schema.one_of("float32", dict.fromkeys(("float32", "bfloat16", "float16"), ""))

    def place_of_label(self, names: Mapping[str, int]) -> int | None:
        """Return the index of the class whose score counts; None for a model with one output.

        Args:
            names: Name -> index of each class.

        Raises:
            ConfigError: There is no such class, or it is not said which one of several counts.
        """
        label = self.label
        if len(names) == 1:
            if label not in (None, 0):
                raise ConfigError(f"'{self.path}' has one output, so it has no label {label!r}")
            return None
        if label is None:
            raise ConfigError(
                f"'{self.path}' has {len(names)} classes: say which one counts as the reward by `label`, one of "
                f"{', '.join(names)}"
            )
        if isinstance(label, int) and 0 <= label < len(names):
            return label
        if str(label) not in names:
            raise ConfigError(unknown_name("label", str(label), names))
        return names[str(label)]


def reward_model_settings(name: str, options: Mapping[str, Any]) -> RewardModelSettings:
    """Read the settings of the reward called `name`.

    Raises:
        ConfigError: A setting is missing, unknown or wrong.
    """
    settings: RewardModelSettings = settings_of(RewardModelSettings, options, f"grading.options.{name}.")
    if not settings.path:
        raise ConfigError(f"grading.options.{name}.path is missing: a reward model needs a folder or hub id")
    return settings


# -- families ----------------------------------------------------------------------------------------------------
# The family of a model, whether it can continue texts, and the numbers of devices it can be split over.


def _kinds(names: str) -> frozenset[str]:
    """Parse a list of kinds of models, by `model_type`."""
    return frozenset(names.split())


WITHOUT_SDPA = _kinds(
    """
    bloom codegen cpmant deepseek_v4 falcon_mamba flint gemma2 got_ocr2 gpt_neo gpt_neox_japanese gpt_oss
    gptj granite_swa granitemoe_swa hy_v4 inkling2_text mamba mamba2 mimo_v2_flash mpt openai-gpt rwkv
    vaultgemma xglm xlstm
    """
)
"""Kinds of models that transformers implements only with plain products. Part of keys, so it is the same on all
machines, whichever version of transformers they have."""

SPLIT = _kinds(
    """
    cohere cohere2 deepseek_v2 deepseek_v3 deepseek_v32 dots1 exaone4 gemma gemma2 gemma3 gemma3_text
    gemma3n_text glm4 gpt_neox granite granitemoe granitemoehybrid helium llama llama4_text llava minicpm3
    minimax mistral mixtral nemotron olmo2 olmo3 olmo_hybrid olmoe phi phi3 phimoe qwen2 qwen2_5_vl
    qwen2_moe qwen3 qwen3_5_text qwen3_moe qwen3_next smollm3 starcoder2
    """
)
"""Kinds of models for which two processes, each with half of nearly all weights, wrote the same tokens as one, by
the tensor-parallel plan of transformers. All families of docs/models.md were tried: others have no plan, one for
the embedding alone, or one that fails."""
_SHARED_HEADS = ("num_attention_heads", "num_key_value_heads", "linear_num_value_heads", "linear_num_key_heads")
_SHARED_WIDTHS = (
    "intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
)
_UNUSABLE = {
    "it is an encoder, which writes no texts": _kinds(
        """
        albert bert bert-generation big_bird camembert data2vec-text deberta deberta-v2 distilbert electra ernie
        longformer megatron-bert modernbert mpnet rembert roberta roberta-prelayernorm roc_bert roformer
        xlm-roberta xlm-roberta-xl xmod
        """
    ),
    "it counts positions of tokens from the longest text of a batch": _kinds(
        """
        bart bigbird_pegasus blenderbot blenderbot-small marian mbart musicgen musicgen_melody mvp pegasus
        plbart prophetnet trocr whisper
        """
    ),
    "it writes texts by diffusion": _kinds("diffusion_gemma dream llada sdar"),
    "it reads texts of certain lengths, or in an order of its own": _kinds("cpmant reformer xlm xlnet"),
}
"""Reasons why kinds of models are no causal language models."""
_GENERATING = ("ForCausalLM", "LMHeadModel", "LMHead", "ForConditionalGeneration", "GenerationDecoder")
MOST_RANKS = 64
"""Largest number of devices to suggest for one model."""
_SCORING = frozenset(("score", "classifier", "classification_head", "logits_proj", "sequence_summary"))
"""Names of the heads of transformers' sequence classifiers."""
_INSTEAD = "Choose a causal language model, such as Qwen, Llama, Gemma or Mamba."


def why_not_usable(config: Mapping[str, Any], *, for_values: bool = False) -> str | None:
    """Describe why a model cannot continue texts token by token, or return None if it can.

    Args:
        config: Content of `config.json`.
        for_values: The model is only the backbone of value models, which have a head of their own.
    """
    kind = str(config.get("model_type"))
    if config.get("is_encoder_decoder"):
        return f"{kind} is an encoder with a decoder, and prompts are continued here by decoders alone. {_INSTEAD}"
    if why := next((why for why, kinds in _UNUSABLE.items() if kind in kinds), ""):
        return f"{kind} is no causal language model: {why}. {_INSTEAD}"
    saved = config.get("architectures")
    built = [name for name in saved if isinstance(name, str)] if isinstance(saved, list) else []
    # Code that comes with a model may use any names for its classes.
    if for_values or not built or "auto_map" in config or any(name.endswith(_GENERATING) for name in built):
        return None
    return (
        f"it was saved as {', '.join(built)}, without the head that gives probabilities of tokens, so nothing can "
        "be drawn from it. Choose the language model that it was made from. (As a reward: docs/rewards.md)"
    )


_EMBEDDINGS = (
    "embed_tokens.weight",
    "wte.weight",
    "embed_in.weight",
    "word_embeddings.weight",
    ".embeddings.weight",
)
"""Ends of the names of weights that have a row for each token."""
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")


def why_other_weights(config: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> str | None:
    """Describe which number of a configuration differs from the weights beside it; None if no name tells one.

    Loading compares all weights, but only once a run has begun.

    Args:
        config: Content of ``config.json``.
        shapes: Name -> shape of each weight.
    """
    text = config.get("text_config") or config
    if not isinstance(text, Mapping) or "quantization_config" in config or "auto_map" in config:
        return None
    found = {tuple(shape) for name, shape in shapes.items() if name.endswith(_EMBEDDINGS)}
    rows, columns = [*(found.pop() if len(found) == 1 else ()), None, None][:2]
    layers = [int(match[1]) for name in shapes if (match := _LAYER.search(name))]
    width = next((key for key in ("word_embed_proj_dim", "hidden_size", "n_embd", "d_model") if key in text), "")
    depth = next((key for key in ("num_hidden_layers", "n_layer", "n_layers") if key in text), "")
    for key, there in (("vocab_size", rows), (width, columns), (depth, max(layers, default=-1) + 1)):
        said = text.get(key)
        # Layers that a configuration does not count, as those that predict further tokens, are not loaded.
        if there and isinstance(said, int) and (said > there or (said != there and key != depth)):
            return f"its weights do not fit its config.json: {key} is {said} there, and {there} in the weights"
    return None


def why_no_scores(tensors: Collection[str]) -> str | None:
    """Describe why a model gives no scores of texts, by the names of its tensors; None if it can."""
    if any(not _SCORING.isdisjoint(name.split(".")) for name in tensors):
        return None
    return (
        "it has no head that scores a text, as language models have none. Choose a model for sequence "
        "classification, such as TRL's RewardTrainer saves"
    )


def classes_of(config: Mapping[str, Any]) -> dict[str, int]:
    """Return name -> index of the classes of a sequence classifier, by the content of `config.json`."""
    names, number = config.get("id2label"), config.get("num_labels")
    if isinstance(names, Mapping):
        return {str(name): int(index) for index, name in names.items() if str(index).isdecimal()}
    # transformers saves neither for two classes
    return {f"LABEL_{index}": index for index in range(number if isinstance(number, int) else 2)}


def why_not_split(config: Mapping[str, Any], width: int) -> str | None:
    """Describe why a model cannot be split over devices that each have a part of every layer; None if it can.

    Args:
        config: Content of `config.json`.
        width: Number of devices.
    """
    kind = config.get("model_type")
    if kind not in SPLIT:
        return (
            f"{kind} cannot be split over devices: it is of no kind that was found right by a tensor-parallel "
            "plan of transformers. Use generation.gpus_per_job=1"
        )
    parts = _split_parts(config)
    if odd := {name: size for name, size in parts.items() if size % width}:
        sizes = ", ".join(f"{name}={size}" for name, size in odd.items())
        fitting = [str(width_) for width_ in split_widths(config) if width_ <= MOST_RANKS]
        return f"{width} devices cannot share {sizes} evenly. Use generation.gpus_per_job={' or '.join(fitting)}"
    return None


def split_widths(config: Mapping[str, Any]) -> list[int]:
    """Return the numbers of devices over which a model can be split, including 1, in increasing order."""
    if config.get("model_type") not in SPLIT:
        return [1]
    common = math.gcd(*_split_parts(config).values())
    return [width for width in range(1, common + 1) if common % width == 0] or [1]


def _split_parts(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes in a model that devices must share equally."""
    inner = config.get("text_config")
    text = inner if isinstance(inner, Mapping) else config
    sizes = {name: text.get(name) for name in (*_SHARED_HEADS, *_SHARED_WIDTHS)}
    return {name: size for name, size in sizes.items() if isinstance(size, int) and size > 0}


def unknown_kind(config: Mapping[str, Any]) -> str | None:
    """Describe that the installed transformers has no code for a kind of models, by its files; None if it has."""
    kind, package = config.get("model_type"), find_spec("transformers")
    if not isinstance(kind, str):
        return "its config.json has no model_type, by which transformers knows what it is. Get the model again"
    if package is None or package.origin is None:
        return None
    tables = list((Path(package.origin).parent / "models" / "auto").glob("*.py"))
    # In these tables a kind comes first, followed by its classes.
    entry = re.compile(rf'\(\s*"{re.escape(kind)}"\s*,|"{re.escape(kind)}"\s*:')
    if not tables or any(entry.search(table.read_text(encoding="utf-8")) for table in tables):
        return None
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and seldom asked

    try:
        release = version("transformers")
    except PackageNotFoundError:
        release = ""
    return (
        f"transformers {release} knows no models of the type '{kind}'. A newer one may: "
        "pip install -U transformers"
    )


# -- adapter folder ----------------------------------------------------------------------------------------------
# A folder of adapters, as peft saves them, that a user names as a model: what they are, and where their base is.
# Planning reads this, so it loads no torch; `source` merges adapters and base.


WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
ENDS = "generation_config.json"
MERGED = frozenset({"LORA", "ADALORA", "IA3", "LOHA", "LOKR", "OFT", "HRA", "VERA", "FOURIERFT"})
"""Kinds of adapters that peft merges into weights; learnt prompts are not among them."""
_WHOLE = ("model*.safetensors", "model.safetensors.index.json")


class Base(NamedTuple):
    """The base model of adapters.

    Attributes:
        path: A folder, or an id of the hub; "" if the adapters do not name one.
        revision: Revision on the hub.
    """

    path: str
    revision: str | None = None


def is_adapters(path: str | Path) -> bool:
    """Return whether a path is a folder with adapters and no other weights."""
    folder = Path(path)
    return (folder / SETTINGS).is_file() and not any(file for name in _WHOLE for file in folder.glob(name))


def base_of(path: str | Path) -> Base:
    """Return the base of the adapters in a folder; a relative path is also looked up beside the adapters.

    Raises:
        ForeignDataError: Their settings are malformed.
        OSError: Their settings cannot be read.
    """
    folder, settings = Path(path), _settings(Path(path))
    named, revision = settings.get("base_model_name_or_path"), settings.get("revision")
    if not isinstance(named, str) or not named:
        return Base("")
    for base in (at_home(named), folder / named):
        if base.is_dir():
            return Base(str(base))
    return Base(named, revision if isinstance(revision, str) and revision else None)


def with_weights(path: str, revision: str | None) -> Base:
    """Return where the weights and configuration of a model are: its own place, or its adapters' base."""
    try:
        base = base_of(path) if is_adapters(path) else None
    except (OSError, ForeignDataError):  # told where models are checked
        base = None
    return Base(path, revision) if base is None or not base.path else base


def tokenizer_place(path: str, revision: str | None) -> Base:
    """Return where the tokenizer of a model is: adapters may have one of their own, else as `with_weights`."""
    return Base(path, revision) if _has_tokenizer(Path(path)) else with_weights(path, revision)


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json"))


def check_folder(name: str, folder: Path) -> None:
    """Refuse adapters that cannot be merged into a base.

    Args:
        name: The setting, for the message.
        folder: Folder of the adapters.

    Raises:
        ConfigError: Says why.
    """
    try:
        settings, base = _settings(folder), base_of(folder)
    except (OSError, ForeignDataError) as error:
        raise ConfigError(f"{name}: cannot read {SETTINGS} ({error}). Save the adapters again by peft") from error
    kind, task = settings.get("peft_type"), settings.get("task_type")
    if kind not in MERGED:
        raise ConfigError(
            f"{name}: adapters of the kind {kind} cannot be merged into weights. Give those of LoRA and its kin "
            f"({', '.join(sorted(MERGED))}), or a whole model"
        )
    if task not in (None, "CAUSAL_LM"):
        raise ConfigError(f"{name}: the adapters are for {task}, and a model that writes text takes CAUSAL_LM")
    if (start := str(settings.get("init_lora_weights"))).startswith("pissa_niter"):
        raise ConfigError(
            f"{name}: with init_lora_weights={start} peft also changed the base, at random. Save the adapters by "
            "save_pretrained(..., path_initial_model_for_weight_conversion=...), or merge them"
        )
    if not base.path:
        raise ConfigError(
            f"{name}: {SETTINGS} does not say what the adapters were trained on. Write the folder or hub id of "
            "that model there, as base_model_name_or_path"
        )
    if (folder / "chat_template.jinja").is_file() and not _has_tokenizer(folder):
        raise ConfigError(
            f"{name}: chat_template.jinja lies beside adapters without a tokenizer, where nothing reads it. Copy "
            "the tokenizer of their base there, or move the template away"
        )
    if not (folder / WEIGHTS).is_file():
        raise ConfigError(f"{name}: {WEIGHTS} is missing. Save the adapters again by save_pretrained of peft")


def _settings(folder: Path) -> dict[str, Any]:
    return read_model_json(folder / SETTINGS, dict[str, Any])


def check_complete(
    model: PreTrainedModel,
    folder: str | os.PathLike[str],
    info: dict[str, Any],
    *,
    besides: Iterable[nn.Parameter] = (),
) -> None:
    """Reject a model with weights that its files lack or have in another size: transformers draws them at random.

    Args:
        model: The loaded model.
        folder: Source of the model, for the message.
        info: Loading information of `from_pretrained` with ignored size mismatches.
        besides: Weights that may be missing.

    Raises:
        JobError: Weights are missing; the message names one of them.
    """
    free, missing = {id(weight) for weight in besides}, {*info["missing_keys"]}
    missing |= {name for name, *_ in info["mismatched_keys"]}
    lacking = [name for name, weight in model.named_parameters() if name in missing and id(weight) not in free]
    if lacking:
        raise JobError(
            f"{folder}: its files lack {len(lacking)} of the tensors that its config.json asks for, or have them "
            f"in another size, such as {lacking[0]}. The two do not belong together, or a part is missing: get "
            "the model again."
        )
