"""A folder of adapters, as peft saves them, that a user names as a model: what they are, and where their base is.

Read while a run is planned, so it loads no torch; `adapters.write_merged` makes a model of both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pipeline.errors import ConfigError
from pipeline.foreign import ForeignDataError, read_model_json

WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
MERGED = frozenset({"LORA", "ADALORA", "IA3", "LOHA", "LOKR", "OFT", "HRA", "VERA", "FOURIERFT"})
"""Kinds of adapters that peft merges into weights; prompts that are learnt are none of these."""
_WHOLE = ("model*.safetensors", "model.safetensors.index.json")


class Base(NamedTuple):
    """What adapters were trained on.

    Attributes:
        path: A folder, or an id of the hub; "" where they do not say.
        revision: On the hub.
    """

    path: str
    revision: str | None = None


def is_adapters(path: str | Path) -> bool:
    """Whether a path is a folder of adapters and of no weights besides."""
    folder = Path(path)
    return (folder / SETTINGS).is_file() and not any(found for name in _WHOLE for found in folder.glob(name))


def base_of(path: str | Path) -> Base:
    """What the adapters of a folder were trained on; a relative folder is looked for beside them as well.

    Raises:
        ForeignDataError: Their settings hold something else.
        OSError: They cannot be read.
    """
    folder, settings = Path(path), _settings(Path(path))
    named, revision = settings.get("base_model_name_or_path"), settings.get("revision")
    if not isinstance(named, str) or not named:
        return Base("")
    for place in (Path(named).expanduser(), folder / named):
        if place.is_dir():
            return Base(str(place))
    return Base(named, revision if isinstance(revision, str) and revision else None)


def with_weights(path: str, revision: str | None) -> Base:
    """Where a model has its weights and configuration: in its own place, or in that of its adapters' base."""
    try:
        base = base_of(path) if is_adapters(path) else None
    except (OSError, ForeignDataError):  # told where models are checked
        base = None
    return Base(path, revision) if base is None or not base.path else base


def tokenizer_place(path: str, revision: str | None) -> Base:
    """As `with_weights`, for the tokenizer: adapters may have one beside them."""
    has_own = any((Path(path) / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json"))
    return Base(path, revision) if has_own else with_weights(path, revision)


def check_folder(given: str, folder: Path) -> None:
    """Refuse adapters that cannot be merged into a base.

    Args:
        given: The setting, for the message.
        folder: Of the adapters.

    Raises:
        ConfigError: Says why.
    """
    try:
        settings, base = _settings(folder), base_of(folder)
    except (OSError, ForeignDataError) as error:
        raise ConfigError(f"{given}: cannot read {SETTINGS} ({error}). Save the adapters again by peft") from error
    kind, task = settings.get("peft_type"), settings.get("task_type")
    if kind not in MERGED:
        raise ConfigError(
            f"{given}: adapters of the kind {kind} cannot be merged into weights. Give those of LoRA and its kin "
            f"({', '.join(sorted(MERGED))}), or a whole model"
        )
    if task not in (None, "CAUSAL_LM"):
        raise ConfigError(f"{given}: the adapters are for {task}, and a model that writes text takes CAUSAL_LM")
    start = str(settings.get("init_lora_weights"))
    if settings.get("alora_invocation_tokens") or start.startswith("pissa_niter"):
        raise ConfigError(
            f"{given}: its adapters alone do not say what the model is: "
            + (
                f"with init_lora_weights={start} peft also changed the base, at random. Save them by peft's "
                "save_pretrained(..., path_initial_model_for_weight_conversion=...), or merge them"
                if start.startswith("pissa_niter")
                else "those with alora_invocation_tokens act from these tokens on, which no weights do"
            )
        )
    if not base.path:
        raise ConfigError(
            f"{given}: {SETTINGS} does not say what the adapters were trained on. Write the folder or hub id of "
            "that model there, as base_model_name_or_path"
        )
    if not (folder / WEIGHTS).is_file():
        raise ConfigError(f"{given}: {WEIGHTS} is missing. Save the adapters again by save_pretrained of peft")


def _settings(folder: Path) -> dict[str, Any]:
    return read_model_json(folder / SETTINGS, dict[str, Any])
