"""Loading models and tokenizers from folders: safetensors only, and no code from the folder unless told to."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import transformers as hf
from accelerate import init_empty_weights
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars
from safetensors import safe_open
from torch import nn
from transformers.utils import logging as of_transformers
from transformers.utils.quantization_config import QuantizationMethod

from pipeline.config.schema import Attention, DType, SystemConfig
from pipeline.errors import JobError
from pipeline.learning.datasets.chat import template_ends
from pipeline.learning.models import batch_size, cache, kinds, value
from pipeline.learning.models.tensor_parallel import note_split, split_options
from pipeline.outputs.formats import adapter_folders

if TYPE_CHECKING:
    from pipeline.learning.training.distributed import Ranks


# -- quantization ------------------------------------------------------------------------------------------------
# Weights of a frozen model in few bits, by bitsandbytes: each linear layer but the output layer, as it is read.
#
#     8 bits   LLM.int8() (arXiv 2208.07339): rows of weights and of activations with a scale each; columns of
#              large activations stay in 16 bits, which are chosen over all rows that are computed together
#     4 bits   NF4 (arXiv 2305.14314): blocks of 64 weights with a scale each, computed in `system.dtype`


_TALKATIVE = "bitsandbytes.autograd._functions"
"""Logger that tells of every product that activations are rounded for it."""


def quantization_options(bits: int | None, system: SystemConfig, device: str) -> dict[str, Any]:
    """Return the arguments with which `from_pretrained` quantizes a model while loading.

    Args:
        bits: 8 or 4; None for no quantization.
        system: Its dtype is used for computation.
        device: ``cpu`` or ``cuda``: a quantized model is loaded directly to its device.
    """
    if bits is None:
        return {}
    from transformers import BitsAndBytesConfig

    logging.getLogger(_TALKATIVE).setLevel(logging.ERROR)
    kind = getattr(torch, system.dtype.name)
    settings = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": kind}
    rounding = BitsAndBytesConfig(**({"load_in_8bit": True} if bits == 8 else settings))
    return {"quantization_config": rounding, "device_map": {"": device}}


log = logging.getLogger("pipeline")
_WEIGHTS = "model*.safetensors"
"""Files of a folder that hold the weights of its model: one, or some of them each."""
_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_LONG_ROPES = ("longrope", "su")
"""Rotary positions with frequencies for long texts and others for short ones; "su" is an older name."""
Model = TypeVar("Model", bound=hf.PreTrainedModel)


def load_policy(
    folder: str | Path,
    system: SystemConfig,
    device: str,
    *,
    base: str | Path | None = None,
    trust_remote_code: bool = False,
    as_stored: bool = False,
    ranks: Ranks | None = None,
    bits: int | None = None,
    for_values: bool = False,
) -> hf.PreTrainedModel:
    """Load a causal language model for inference.

    Args:
        folder: Folder saved by `save_pretrained`, or a hub id; or the output of a training that stores adapters.
        system: Its dtype and attention implementation.
        device: ``cpu`` or ``cuda``.
        base: The reference, on which adapters were trained. Of no meaning for a folder that holds all weights.
        trust_remote_code: Run Python code that comes with the model.
        as_stored: Leave weights in the type that they are saved in, if all are of one. On the CPU they then stay
            in their file until they are asked for, and take memory of no rank that spreads them. What is computed
            rather than saved is as precise as the system's dtype all the same.
        bits: Bits of each weight of linear layers, for a model that is never trained; None keeps them as they are.
        ranks: Ranks of the job. If they share the model that generates, each loads its part, and all call this.
        for_values: Whether it is the backbone of a value model, so that its output layer may be missing.

    Raises:
        JobError: It is of no use here, or weights are missing; or it holds adapters, and `base` is not given.
    """
    if adapter_folders(Path(folder)):
        return _load_merged(Path(folder), base, system, device, ranks, trust_remote_code=trust_remote_code)
    config = hf.AutoConfig.from_pretrained(str(folder), trust_remote_code=trust_remote_code)
    if why := kinds.why_not_usable(config.to_dict(), for_values=for_values):
        raise JobError(f"{folder}: {why}")
    kind = kind_of_policies(config)
    options = _options(system, _attention(kind, config, system.attn_impl))
    code = {"trust_remote_code": trust_remote_code}
    stored = _type_of_all(Path(folder)) if as_stored else None
    model: hf.PreTrainedModel
    model, info = kind.from_pretrained(
        str(folder),
        config=config,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # refused below, by name
        **code,
        **{**options, **({"dtype": stored} if stored else {})},
        **split_options(config, ranks, str(folder)),
        **quantization_options(bits, system, device),
    )
    head = model.get_output_embeddings() if for_values else None
    kinds.check_complete(model, folder, info, besides=[] if head is None else [*head.parameters()])
    if stored:
        _compute_buffers(model, partial(kind.from_config, config, dtype=options["dtype"], **code))
    note_split(model, ranks)
    return frozen(model, device)


def _load_merged(
    folder: Path,
    base: str | Path | None,
    system: SystemConfig,
    device: str,
    ranks: Ranks | None,
    *,
    trust_remote_code: bool,
) -> hf.PreTrainedModel:
    """Load a policy of which only adapters are stored: merge them into the base.

    Adapters are added in float32 to the weights as stored, and the sums are rounded to the system's dtype.
    """
    if base is None:
        raise JobError(
            f"{folder} holds adapters rather than a model; say what they were trained on: "
            "load_policy(folder, ..., base=toolbox.reference_source(ctx))"
        )
    if ranks is not None and ranks.splits_tensors:
        return _load_merged_parts(folder, base, system, device, ranks, trust_remote_code=trust_remote_code)
    from pipeline.learning.models.adapters import merge_adapters  # loads peft, which few jobs need

    load = partial(load_policy, base, device="cpu", trust_remote_code=trust_remote_code)
    model = load(system)
    is_exact = system.dtype is DType.float32 or _type_of_all(Path(base)) is getattr(torch, system.dtype.name)
    exact = None if is_exact else load(replace(system, dtype=DType.float32))
    merge_adapters(model, adapter_folders(folder), exact)
    model.name_or_path = str(folder)
    return frozen(model, device)


def _load_merged_parts(
    folder: Path,
    base: str | Path,
    system: SystemConfig,
    device: str,
    ranks: Ranks,
    *,
    trust_remote_code: bool,
) -> hf.PreTrainedModel:
    """Load as `_load_merged` for ranks that read their parts from files: rank 0 writes these files first."""
    load = partial(load_policy, trust_remote_code=trust_remote_code)

    def write() -> str:
        merged = tempfile.mkdtemp(prefix="merged-", dir=cache.scratch_folder())
        load(folder, system, "cpu", base=base).save_pretrained(merged)
        return merged

    merged = ranks.made_by_first(write)
    try:
        model: hf.PreTrainedModel = load(merged, system, device, ranks=ranks)
        ranks.any_of(False)  # all ranks have read the files
    finally:
        if ranks.is_first:
            shutil.rmtree(merged, ignore_errors=True)
    model.name_or_path = str(folder)
    return model


def _type_of_all(folder: Path) -> torch.dtype | None:
    """Return the type of all saved weights in a folder; None if there are several, or an unusual one.

    The type ``auto`` of transformers is that in `config.json`, or of the first weight; other weights may be more
    precise.
    """
    types: set[str] = set()
    for path in folder.glob(_WEIGHTS):
        with safe_open(path, "pt") as file:
            types |= {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 - it is no mapping
    return _TYPES.get(types.pop()) if len(types) == 1 else None


def _compute_buffers(model: hf.PreTrainedModel, make: Callable[[], hf.PreTrainedModel]) -> None:
    """Give a model the buffers that are computed rather than saved, in the type of a model from `make`."""
    saved = set(model.state_dict())
    if all(name in saved for name, _ in model.named_buffers()):
        return
    with init_empty_weights(include_buffers=False):
        computed = dict(make().named_buffers())
    for name, buffer in model.named_buffers():
        if name not in saved:
            buffer.data = computed[name]


def kind_of_policies(config: hf.PreTrainedConfig) -> Any:
    """Return the class that loads a model which generates text.

    A model that also sees or hears counts as a language model, since it gets only text.
    """
    several = hf.AutoModelForCausalLM, hf.AutoModelForImageTextToText
    return next((kind for kind in several if type(config) in kind._model_mapping), hf.AutoModelForCausalLM)


def load_value(folder: Path, system: SystemConfig, device: str) -> value.ValueModel:
    """Load a value model for inference."""
    config = hf.AutoConfig.from_pretrained(str(folder))
    attention = _attention(hf.AutoModel, config, system.attn_impl)
    return frozen(value.ValueModel.from_pretrained(str(folder), **_options(system, attention)), device)


def load_tokenizer(folder: str | Path, *, trust_remote_code: bool = False) -> hf.PreTrainedTokenizerBase:
    """Load the tokenizer that was saved with a model."""
    tokenizer: hf.PreTrainedTokenizerBase = hf.AutoTokenizer.from_pretrained(
        str(folder), trust_remote_code=trust_remote_code
    )
    return tokenizer


def save_tokenizer(tokenizer: hf.PreTrainedTokenizerBase, folder: str | Path) -> None:
    """Save a tokenizer with the same bytes wherever it was read from, and whatever the environment is."""
    for name in _WHERE_READ:
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.save_pretrained(folder)


_WHERE_READ = (
    "_commit_hash",
    "cache_dir",
    "force_download",
    "gguf_file",
    "is_local",
    "local_files_only",  # true where HF_HUB_OFFLINE is set
    "name_or_path",
    "proxies",
    "revision",
    "subfolder",
    "token",
)
"""Settings that `from_pretrained` adds to a tokenizer about the source of its files."""


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Switch off progress bars of transformers meanwhile; afterwards the settings are as before."""
    shown, of_hub = of_transformers.is_progress_bar_enabled(), not are_progress_bars_disabled()
    of_transformers.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            of_transformers.enable_progress_bar()  # which switches on those of the hub as well
        if shown and not of_hub:
            disable_progress_bars()


def frozen(model: Model, device: str) -> Model:
    """Put a model on its device, in evaluation mode and without gradients."""
    # bitsandbytes has loaded its models to the device. Other quantized models are on the CPU until moved.
    if getattr(model, "quantization_method", None) != QuantizationMethod.BITS_AND_BYTES:
        model.to(device)  # type: ignore[arg-type]
    model.eval()
    model.requires_grad_(False)
    return model


def train_text(model: hf.PreTrainedModel) -> None:
    """Make all weights trainable that process text; the parts of a model that see or hear stay frozen."""
    if model.config.get_text_config() is model.config:
        model.requires_grad_(True)
        return
    model.requires_grad_(False)
    for part in text_parts(model):
        part.requires_grad_(True)


def text_parts(model: hf.PreTrainedModel) -> tuple[nn.Module, nn.Module]:
    """Return the language model and the output head, which process text in a model that also sees or hears."""
    return model.get_decoder(), model.get_output_embeddings()


def end_ids(settings: hf.GenerationConfig | None, tokenizer: hf.PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the tokens that end a completion: the tokenizer's end of text, then those of the generation settings.

    Chat models often have several; their tokenizer names one of them. Last is the token that the chat template
    writes after an answer: a base model with the template of ChatML may have another one in both.
    """
    named = getattr(settings, "eos_token_id", None)
    further = named if isinstance(named, list) else [named]
    ends = (tokenizer.eos_token_id, *further, *template_ends(tokenizer))
    return tuple(dict.fromkeys(token for token in ends if token is not None))


def context_length(model: hf.PreTrainedModel) -> int | None:
    """Return the number of tokens in the context of a model, or None if its configuration sets no limit."""
    return config_context(model.config)


def config_context(config: hf.PreTrainedConfig) -> int | None:
    """Return the number of tokens in the context of a model, by its configuration.

    For longrope this is the original training length: transformers uses other frequencies for all texts of a batch
    once one of them is longer, so a text would depend on the other texts of its batch.
    """
    text = config.get_text_config()
    lengths = (getattr(text, name, None) for name in ("max_position_embeddings", "max_seq_len"))
    context = next((length for length in lengths if isinstance(length, int) and length > 0), None)
    return min([length for length in (context, *_original_lengths(text)) if length is not None], default=None)


def length_beside_others(config: hf.PreTrainedConfig) -> int | None:
    """Return the length in tokens beyond which a text changes the results of others in its batch.

    None if none does.
    """
    return min(_original_lengths(config.get_text_config()), default=None)


def _original_lengths(text: hf.PreTrainedConfig) -> list[int]:
    """Return the lengths beyond which other position frequencies apply; also for code that comes with a model."""
    ropes = getattr(text, "rope_parameters", None)
    own = getattr(text, "original_max_position_embeddings", None)
    # One for all layers, or one for each type of layer.
    every = [ropes, *ropes.values()] if isinstance(ropes, dict) else []
    lengths = [
        rope.get("original_max_position_embeddings") or own
        for rope in every
        if isinstance(rope, dict) and (rope.get("rope_type") or rope.get("type")) in _LONG_ROPES
    ]
    return [length for length in lengths if isinstance(length, int) and length > 0]


def checkpoint_activations(model: hf.PreTrainedModel) -> None:
    """Recompute layers in the backward pass instead of keeping their outputs."""
    # Renamed within transformers 5, where the old name warns.
    new = getattr(model, "activation_checkpointing_enable", None)
    (new or model.gradient_checkpointing_enable)({"use_reentrant": False})


def _attention(kind: Any, config: hf.PreTrainedConfig, asked: Attention) -> Attention:
    """Return the requested attention, or one that the model supports.

    Code that comes with a model is not checked.
    """
    if type(config) not in kind._model_mapping:
        return asked
    model = kind._model_mapping[type(config)]
    model = model[0] if isinstance(model, tuple) else model
    used = asked
    if used is Attention.flash_attention_2 and not model._supports_flash_attn:
        used = Attention.sdpa
    # For kinds without sdpa, earlier versions of transformers 5 claim to have it, and omit the soft cap of scores.
    if used is Attention.sdpa and (not model._supports_sdpa or config.model_type in kinds.WITHOUT_SDPA):
        used = Attention.eager
    if used is not asked:
        log.warning("transformers has %s without %s attention; using %s", config.model_type, asked.name, used.name)
    return used


def _options(system: SystemConfig, attention: Attention) -> dict[str, Any]:
    return {
        "dtype": getattr(torch, system.dtype.name),
        "attn_implementation": attention.name,
        "use_safetensors": True,
    }


# -- gguf --------------------------------------------------------------------------------------------------------
# A GGUF file as a model of transformers: weights back in floating point, tokenizer and chat template included.


def convert(file: Path, out: Path) -> hf.PreTrainedModel:
    """Write the model of a GGUF file as a plain folder of safetensors.

    Values are those that the quantised weights stand for, in float32, which holds them exactly.

    Args:
        file: The GGUF file.
        out: Folder to write to.

    Returns:
        The model.

    Raises:
        JobError: The file is damaged, or transformers does not read its architecture.
    """
    # Both come with one progress bar for each tensor type, and one for the file that is written.
    of_transformers.disable_progress_bar()
    source = {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = hf.AutoTokenizer.from_pretrained(str(file.parent), **source)
        model: hf.PreTrainedModel = hf.AutoModelForCausalLM.from_pretrained(
            str(file.parent), dtype=torch.float32, **source
        )
    except Exception as error:  # whatever a wrong byte leads the readers of this format to
        if batch_size.is_out_of_memory(error):
            raise
        raise JobError(
            f"cannot read {file} as a model ({type(error).__name__}: {error}). transformers reads GGUF files of "
            "some architectures; for others, or a damaged file, get the safetensors of the model."
        ) from error
    # They still say "quantised", but the weights no longer are.
    model.hf_quantizer = None  # type: ignore[assignment]
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    # The name and place of the file are no part of the result.
    model.config._name_or_path = ""
    model.save_pretrained(out)
    save_tokenizer(tokenizer, out)
    return model
