"""Store trained adapters in the format of peft, and merge them into the weights when a policy is loaded."""

import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from pipeline import errors, files
from pipeline.learning.models.kinds import SETTINGS, WEIGHTS

SLACK = 1e-3
"""Largest difference, relative to the largest logit, between a merged model and the base with adapters."""
_NAME = "default"


def save_adapters(model: PeftModel, folder: Path) -> None:
    """Write the adapters of a model; equal adapters give equal bytes on every machine.

    Args:
        model: The trained model; complete, if several ranks trained it.
        folder: Folder to create.
    """
    folder.mkdir(parents=True)
    # peft would ask the hub whether the vocabulary has grown; it never grows here.
    state = get_peft_model_state_dict(model, save_embedding_layers=False)
    weights = {name: weight.detach().float().cpu().contiguous() for name, weight in state.items()}
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    settings: dict[str, Any] = model.peft_config[_NAME].to_dict()
    # The order of a set differs between processes, and the place of the base is not stored.
    settings = {name: sorted(value) if isinstance(value, set) else value for name, value in settings.items()}
    settings |= {"base_model_name_or_path": None, "inference_mode": True}
    (folder / SETTINGS).write_text(files.json_text(settings, indent=2, sort_keys=True) + "\n")


def copy_adapters(folders: Iterable[Path], to: Path) -> None:
    """Copy adapters, each into a folder of the same name."""
    for folder in folders:
        (to / folder.name).mkdir(parents=True)
        for name in (SETTINGS, WEIGHTS):
            shutil.copyfile(folder / name, to / folder.name / name)


@torch.no_grad()
def merge_adapters(model: PreTrainedModel, adapters: Sequence[Path], exact: PreTrainedModel | None = None) -> None:
    """Add adapters to the weights of a model in place, one after the other in float32, and round once at the end.

    Args:
        model: Base model in main memory, so that machines with any device add the same numbers.
        adapters: Folders of adapters, in order.
        exact: The same model with more precise weights, which are used in the sums instead of the model's own.
            They are freed layer by layer.

    Raises:
        JobError: Adapters are missing, are no adapters, or belong to another model.
    """
    adapted = _adapted(model if exact is None else exact, adapters)
    order = [_name(number) for number in range(len(adapters))]
    for name, layers in _layers(adapted).items():
        below = layers[-1].get_base_layer()
        own = dict(below.named_parameters(recurse=False))
        into = own if exact is None else dict(model.get_submodule(name).named_parameters(recurse=False))
        kinds = {parameter: weight.dtype for parameter, weight in into.items()}
        for weight in own.values():
            weight.data = weight.data.float()
        for layer in layers:
            layer.merge(adapter_names=order)
        for parameter, weight in own.items():
            into[parameter].data = weight.data.to(kinds[parameter])
            if exact is not None:
                weight.data = weight.data.new_empty(0)
    if exact is None:
        adapted.unload()


@torch.no_grad()
def merged_by_peft(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Merge adapters of any kind that peft can merge into their base, which may change its vocabulary.

    Args:
        model: The base, in float32 and main memory.
        folder: Folder of the adapters.

    Returns:
        The base with merged weights.

    Raises:
        JobError: The adapters belong to another model, or the merged model computes something else.
    """
    with _telling_of(folder), quietly():
        stored = load_file(folder / WEIGHTS)
        _resize(model, stored)
        adapted = PeftModel.from_pretrained(model, str(folder), torch_device="cpu").eval()
        placed = get_peft_model_state_dict(adapted, save_embedding_layers=False)
        if lacking := sorted(placed.keys() - stored.keys()):
            raise ValueError(f"{lacking[0]} is missing")
        if odd := sorted(stored.keys() - placed.keys() - adapted.state_dict().keys()):
            raise ValueError(f"{odd[0]} is nowhere in the model")
        some = torch.arange(min(8, model.config.get_text_config().vocab_size))[None]
        meant = adapted(input_ids=some).logits
        text = model.config.get_text_config()
        tied = getattr(text, "tie_word_embeddings", False)
        text.tie_word_embeddings = model.config.tie_word_embeddings = False
        _part(adapted)
        whole: PreTrainedModel = adapted.merge_and_unload(safe_merge=True)
        if tied:
            layers = whole.get_input_embeddings(), whole.get_output_embeddings()
            same = torch.equal(*(layer.get_parameter("weight") for layer in layers))
            text.tie_word_embeddings = model.config.tie_word_embeddings = same
        if not (whole(input_ids=some).logits - meant).abs().max() <= SLACK * meant.abs().max():
            raise ValueError("what comes out computes something else than base and adapters")
    return whole


def _resize(model: PreTrainedModel, stored: Mapping[str, torch.Tensor]) -> None:
    """Resize the vocabulary of a base to the size at which its adapters were saved."""
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        name = next((name for name, module in model.named_modules() if module is layer), None)
        for part, dimension in (("weight", 0), ("lora_embedding_A", 1), ("lora_B.weight", 0)):
            weight = stored.get(f"base_model.model.{name}.{part}")
            if weight is not None and weight.shape[dimension] != model.config.get_text_config().vocab_size:
                model.resize_token_embeddings(weight.shape[dimension], mean_resizing=False)


def _part(model: nn.Module) -> None:
    """Copy weights that layers share, so that one layer may be changed without the others."""
    seen: set[int] = set()
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            if id(weight) in seen:
                setattr(module, name, nn.Parameter(weight.clone(), requires_grad=False))
            seen.add(id(weight))


def _adapted(model: PreTrainedModel, adapters: Sequence[Path]) -> PeftModel:
    # Created without values and filled from the files: nothing is random.
    options: dict[str, Any] = {"low_cpu_mem_usage": True, "torch_device": "cpu"}
    adapted: PeftModel | None = None
    for number, folder in enumerate(adapters):
        with _telling_of(folder), quietly():
            # peft would ask the hub for missing files, or read a pickle.
            if missing := [name for name in (SETTINGS, WEIGHTS) if not (folder / name).is_file()]:
                raise FileNotFoundError(f"{missing[0]} is missing")
            if adapted is None:
                adapted = PeftModel.from_pretrained(model, str(folder), adapter_name=_name(number), **options)
            else:
                adapted.load_adapter(str(folder), adapter_name=_name(number), **options)
    assert adapted is not None
    for number, folder in enumerate(adapters):
        with _telling_of(folder):
            placed = get_peft_model_state_dict(adapted, adapter_name=_name(number), save_embedding_layers=False)
            stored = load_file(folder / WEIGHTS)
            if odd := sorted(stored.keys() ^ placed.keys()):
                raise ValueError(f"{odd[0]} is {'nowhere in the model' if odd[0] in stored else 'missing'}")
            for name, weight in stored.items():
                if not weight.isfinite().all():
                    raise ValueError(f"{name} has numbers that are not finite")
                placed[name].copy_(weight)  # peft has rounded it to the type of the model
    return adapted


@contextmanager
def _telling_of(folder: Path) -> Iterator[None]:
    """Raise a `JobError` that names the adapters when peft cannot use them."""
    try:
        yield
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RuntimeError, SafetensorError) as error:
        text = " ".join(str(error).split())[:500] or type(error).__name__
        raise errors.JobError(f"the adapters in {folder} cannot be merged into their reference: {text}") from error


def _name(number: int) -> str:
    """Return the name of an adapter in peft, which would take a plain number for part of a layer's name."""
    return f"adapter_{number}"


def _layers(adapted: PeftModel) -> dict[str, list[LoraLayer]]:
    """Return the adapted layers by their names in the base model.

    A layer with several tensors has one entry for each.
    """
    by_name: dict[str, list[LoraLayer]] = {}
    for name, module in adapted.named_modules():
        if isinstance(module, LoraLayer):
            parts = name.removeprefix("base_model.model.").split(".")
            by_name.setdefault(".".join(part for part in parts if part != "base_layer"), []).append(module)
    return by_name


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress irrelevant warnings while peft wraps a model, and preserve the random state."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # peft uses a name that transformers has deprecated.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        # It lists experts that it then finds by another name; they are adapted anyway.
        warnings.filterwarnings("ignore", "The following (rank|alpha)_pattern keys did not match", RuntimeWarning)
        # The caller that adds adapters rejects such layers.
        warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True` and a tied layer", UserWarning)
        # `merge_adapters` checks the model of the adapters, and raises an error.
        warnings.filterwarnings("ignore", "Found missing adapter keys", UserWarning)
        yield
