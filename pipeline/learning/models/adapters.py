"""Adapters on disk, in the format of peft: saved by a training, merged into weights when its policy is loaded."""

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
"""Of the largest logit, by how much a merged model may differ from base and adapters, which add up otherwise."""
_NAME = "default"


def save_adapters(model: PeftModel, folder: Path) -> None:
    """Write the adapters of a model, the same bytes wherever and whenever they were trained.

    Args:
        model: As it was trained; whole, where several ranks did it.
        folder: To make, and write to.
    """
    folder.mkdir(parents=True)
    # Whether the vocabulary has grown peft would ask the hub; it never does here.
    found = get_peft_model_state_dict(model, save_embedding_layers=False)
    weights = {name: weight.detach().float().cpu().contiguous() for name, weight in found.items()}
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    settings: dict[str, Any] = model.peft_config[_NAME].to_dict()
    # Sets have another order in every process, and where the model was is nothing that lasts.
    settings = {name: sorted(one) if isinstance(one, set) else one for name, one in settings.items()}
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
        model: In the machine's memory, so that all machines with all devices add up the same.
        adapters: Folders of them, in order.
        exact: The same model with weights that are more precise, which are added to in place of its own. They are
            dropped, a layer at a time.

    Raises:
        JobError: Adapters are not there, are no such ones, or are those of another model.
    """
    adapted = _adapted(model if exact is None else exact, adapters)
    order = [_name(number) for number in range(len(adapters))]
    for name, layers in _layers(adapted).items():
        below = layers[-1].get_base_layer()
        own = dict(below.named_parameters(recurse=False))
        into = own if exact is None else dict(model.get_submodule(name).named_parameters(recurse=False))
        kinds = {each: weight.dtype for each, weight in into.items()}
        for weight in own.values():
            weight.data = weight.data.float()
        for layer in layers:
            layer.merge(adapter_names=order)
        for each, weight in own.items():
            into[each].data = weight.data.to(kinds[each])
            if exact is not None:
                weight.data = weight.data.new_empty(0)
    if exact is None:
        adapted.unload()


@torch.no_grad()
def merged_by_peft(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Merge adapters of any kind that peft merges into their base, which may get another vocabulary by them.

    Args:
        model: The base, in float32 and the machine's memory.
        folder: Of the adapters.

    Returns:
        The base with other weights.

    Raises:
        JobError: They are those of another model, or what they make cannot be written as weights of such a one.
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
    """Give a base as many tokens as it had when its adapters were saved."""
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        name = next((name for name, module in model.named_modules() if module is layer), None)
        for place, dimension in (("weight", 0), ("lora_embedding_A", 1), ("lora_B.weight", 0)):
            weight = stored.get(f"base_model.model.{name}.{place}")
            if weight is not None and weight.shape[dimension] != model.config.get_text_config().vocab_size:
                model.resize_token_embeddings(weight.shape[dimension], mean_resizing=False)


def _part(model: nn.Module) -> None:
    """Give layers that share a weight one each, so that one may be changed without the others."""
    seen: set[int] = set()
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            if id(weight) in seen:
                setattr(module, name, nn.Parameter(weight.clone(), requires_grad=False))
            seen.add(id(weight))


def _adapted(model: PreTrainedModel, adapters: Sequence[Path]) -> PeftModel:
    # Made without numbers in them, and filled from the files: nothing is drawn.
    options: dict[str, Any] = {"low_cpu_mem_usage": True, "torch_device": "cpu"}
    adapted: PeftModel | None = None
    for number, folder in enumerate(adapters):
        with _telling_of(folder), quietly():
            # For what is not there peft would ask the hub, or read a pickle.
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
    """Say of which adapters it is that peft cannot use them, whatever it raises."""
    try:
        yield
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RuntimeError, SafetensorError) as error:
        said = " ".join(str(error).split())[:500] or type(error).__name__
        raise errors.JobError(f"the adapters in {folder} cannot be merged into their reference: {said}") from error


def _name(number: int) -> str:
    """What peft calls one of several adapters; a number alone it would take for that of a layer."""
    return f"adapter_{number}"


def _layers(adapted: PeftModel) -> dict[str, list[LoraLayer]]:
    """Layers that have adapters, by their names in the model without; of one with several tensors one for each."""
    found: dict[str, list[LoraLayer]] = {}
    for name, module in adapted.named_modules():
        if isinstance(module, LoraLayer):
            parts = name.removeprefix("base_model.model.").split(".")
            found.setdefault(".".join(part for part in parts if part != "base_layer"), []).append(module)
    return found


@contextmanager
def quietly() -> Iterator[None]:
    """Have peft put adapters around a model without warnings that tell nobody anything, and leave draws alone."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # peft asks transformers by a name that transformers has since given up.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        # It names experts itself that it then finds by another name; they are adapted all the same.
        warnings.filterwarnings("ignore", "The following (rank|alpha)_pattern keys did not match", RuntimeWarning)
        # Such layers are refused by who puts adapters around them.
        warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True` and a tied layer", UserWarning)
        # Whose adapters these are is compared by `merge_adapters`, and told as an error.
        warnings.filterwarnings("ignore", "Found missing adapter keys", UserWarning)
        yield
