"""Translate TRL's configurations into settings of this package, by one table."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from hydra.core.override_parser.types import Quote, QuotedString

from pipeline.config.schema import Optimizer, Schedule, TextBackend, Tracker
from pipeline.errors import ConfigError, unknown_name
from pipeline.learning.choices import DPOLoss, GRPOLoss, ImportanceSampling, ScaleRewards, VLLMCorrection

Values = Mapping[str, Any]


class FromTRL(NamedTuple):
    """Counterpart of a configuration of TRL in this package.

    Attributes:
        overrides: Settings, for `load_config` or the command line.
        without: Arguments that no override stands for: name and value, and the key to look at where one
            is near.
    """

    overrides: list[str]
    without: list[str]


@dataclass(frozen=True)
class Counterpart:
    """The key of an argument; ``{algo}`` stands for the algorithm.

    Attributes:
        key: The key.
        told: Makes the key's value of the argument's and all values: plain data, or None where there is none. None
            where a value says too little: then it is for the reader to decide.
    """

    key: str
    told: Callable[[Any, Values], Any] | None = None


def _same(value: Any, _: Values) -> Any:
    return value


def _one_of(choices: type[Enum]) -> Callable[[Any, Values], Any]:
    known = {each.value for each in choices}

    def told(value: Any, _: Values) -> Any:
        one = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
        return one if isinstance(one, str) and one in known else None

    return told


def _schedule(value: Any, _: Values) -> Any:
    return None if value == Schedule.cosine_from_start.value else _one_of(Schedule)(value, _)


def _optimizer(value: Any, _: Values) -> Any:
    if value in ("adamw_torch", "adamw_torch_fused"):
        return Optimizer.adamw.value
    return Optimizer.adamw_8bit.value if value in ("adamw_8bit", "adamw_bnb_8bit") else None


def _whole(value: Any, _: Values) -> Any:
    """Return a number of steps or epochs if it is whole, else None, as a fraction has no counterpart."""
    return int(value) if value == int(value) else None


def _steps(value: Any, given: Values) -> Any:
    strategy = _plain(given["save_strategy"])
    return "" if strategy == "no" else _whole(value, given) if strategy == "steps" else None


def _batch(_: Any, given: Values) -> Any:
    """Return the completions of an optimizer step; None if they split a group.

    The number of completions in packed rows is unknown.
    """
    if given.get("packing"):
        return None
    count = _completions(given) * given["gradient_accumulation_steps"] * given["devices"]
    return None if count % given.get("num_generations", 1) else count


def _micro_batch(_: Any, given: Values) -> Any:
    group = given.get("num_generations", 1)
    return max(group, _completions(given) // group * group)


def _completions(given: Values) -> int:
    """Return the completions in a forward pass on one device; a pair counts as two."""
    return int(given["per_device_train_batch_size"]) * (2 if given["algo"] in _OF_PAIRS else 1)


def _generation_steps(_: Any, given: Values) -> Any:
    """Return the optimizer steps per generation; None if they are not whole."""
    steps = given["gradient_accumulation_steps"]
    micro = given["steps_per_generation"] or steps
    if given["steps_per_generation"] is None and given["generation_batch_size"] is not None:
        micro = given["generation_batch_size"] / (given["per_device_train_batch_size"] * given["devices"])
    return int(micro // steps) if micro % steps == 0 else None


def _unpadded(_: Any, given: Values) -> Any:
    """Return whether padding is left out; packing implies it."""
    return given["padding_free"] or given["packing"]


def _packing(value: Any, given: Values) -> Any:
    return "" if not value or given["packing_strategy"] == "bfd" else None


def _dtype(_: Any, given: Values) -> Any:
    if given["fp16"]:
        return "float16"
    return "float32" if given["bf16"] is False else "bfloat16"


def _checkpointing(value: Any, given: Values) -> Any:
    return bool(given["gradient_checkpointing"] if value is None else value)


def _trackers(value: Any, _: Values) -> Any:
    named = [value] if isinstance(value, str) else list(value or [])
    named = [] if named == ["none"] else named
    return named if all(each in {one.value for one in Tracker} for each in named) else None


def _scale(value: Any, _: Values) -> Any:
    named = ("group" if value else "none") if isinstance(value, bool) else value
    return _one_of(ScaleRewards)(named, _)


def _own(names: str, told: Callable[[Any, Values], Any] = _same) -> dict[str, Counterpart]:
    """Map arguments to settings of the algorithm with the same names."""
    return {name: Counterpart(f"algos.{{algo}}.{name}", told) for name in names.split()}


def _as(told: Callable[[Any, Values], Any] | None, **keys: str) -> dict[str, Counterpart]:
    """Map arguments to their keys, all with one conversion."""
    return {name: Counterpart(key, told) for name, key in keys.items()}


def _of_vllm(value: Any, given: Values) -> Any:
    """Return a setting of vLLM's draws; nothing where TRL draws without it."""
    return value if given["use_vllm"] else ""


def _correction(value: Any, given: Values) -> Any:
    mode = value if given["vllm_importance_sampling_correction"] else VLLMCorrection.none.value
    return _of_vllm(_one_of(VLLMCorrection)(mode, given), given)


def _clip_max(value: Any, given: Values) -> Any:
    cap = given["vllm_importance_sampling_cap"]  # its name before
    most = value if cap is None else cap
    return _of_vllm("null" if most is None else most, given)


def _nothing(*_: Any) -> str:
    """Return an empty value: another argument has set the counterpart."""
    return ""


def _teacher(value: Any, _: Values) -> Any:
    """Return a model's path or hub id; None for one without a slash, which is a method of the run here."""
    return value if value and "/" in value else None


SHARED = {
    **_own("learning_rate"),
    **_as(_whole, num_train_epochs="algos.{algo}.epochs", warmup_steps="training.warmup_steps"),
    "per_device_train_batch_size": Counterpart("training.micro_batch_size", _micro_batch),
    "gradient_accumulation_steps": Counterpart("algos.{algo}.batch_size", _batch),
    **{f"adam_{name}": Counterpart(f"training.adam_{name}", _same) for name in ("beta1", "beta2", "epsilon")},
    **_as(_same, weight_decay="training.weight_decay", max_grad_norm="training.grad_clip"),
    "lr_scheduler_type": Counterpart("training.schedule", _schedule),
    "optim": Counterpart("training.optimizer", _optimizer),
    "activation_checkpointing": Counterpart("training.gradient_checkpointing", _checkpointing),
    **_as(_nothing, gradient_checkpointing="training.gradient_checkpointing", fp16="system.dtype"),
    "bf16": Counterpart("system.dtype", _dtype),
    **_as(_same, torch_empty_cache_steps="system.clear_cache_interval", output_dir="output_dir"),
    **_as(_same, run_name="experiment.name"),
    "seed": Counterpart("experiment.seeds", lambda value, _: [value]),
    "save_steps": Counterpart("training.checkpoint_every_steps", _steps),
    "report_to": Counterpart("tracking.report_to", _trackers),
    **_as(None, max_steps="data_collection.prompts_per_round", fsdp="training.strategy"),
    **_as(None, project="tracking.project", model_init_kwargs="models.hf.path"),
    **_as(None, trust_remote_code="models.hf.trust_remote_code"),
}
"""Arguments of every configuration. An empty key has no counterpart of its own: another argument has set it."""
_SHOWN = "evaluation.sample_prompts"
_ANCHOR = _as(None, precompute_ref_batch_size="training.micro_batch_size", sync_ref_model="algos.{algo}.reference")
_DRAWS = {
    "use_vllm": Counterpart("generation.backend", lambda value, _: TextBackend.vllm.value if value else ""),
    **_as(_whole, num_train_epochs="rounds_of_training"),
    **_as(_same, max_completion_length="generation.max_new_tokens"),
    **_as(_same, temperature="generation.temperature", top_p="generation.top_p"),
    **_as(None, generation_kwargs="generation.stop", vllm_gpu_memory_utilization="generation.memory_mb"),
    **_as(None, chat_template_kwargs="datasets.hf.chat_template_kwargs"),
    **_as(None, log_completions=_SHOWN, num_completions_to_print=_SHOWN, log_unique_prompts=_SHOWN),
}
"""Arguments of methods that draw while they train."""
_ONLINE = {
    **_DRAWS,
    **_own("num_generations beta epsilon epsilon_high delta mask_truncated_completions entropy_coef"),
    **_own("use_bias_correction_kl"),
    **_own("loss_type", _one_of(GRPOLoss)),
    **_own("scale_rewards", _scale),
    **_own("importance_sampling_level", _one_of(ImportanceSampling)),
    **_own("steps_per_generation", _generation_steps),
    **_own("vllm_importance_sampling_mode", _correction),
    **_own("vllm_importance_sampling_clip_max", _clip_max),
    **_own("vllm_importance_sampling_clip_min", _of_vllm),
    "vllm_importance_sampling_correction": Counterpart("algos.{algo}.vllm_importance_sampling_mode", _nothing),
    "vllm_importance_sampling_cap": Counterpart("algos.{algo}.vllm_importance_sampling_clip_max", _nothing),
    "generation_batch_size": Counterpart(
        "algos.{algo}.steps_per_generation",
        lambda _, given: None if _generation_steps(None, given) is None else "",
    ),
    **_as(_same, num_iterations="algos.{algo}.epochs", num_generations_eval="evaluation.num_samples"),
    **_as(None, sync_ref_model="algos.{algo}.reference", reward_weights="datasets.hf.rewards"),
}
"""Arguments of those that rewards teach; RLOOConfig has fewer."""
OF_ALGORITHM = {
    "DPO": {
        **_own("beta label_smoothing"),
        **_own("loss_type", _one_of(DPOLoss)),
        **_as(None, max_length="generation.max_new_tokens", truncation_mode="generation.long_prompts"),
        **_ANCHOR,
        **_as(_same, padding_free="training.padding_free"),
    },
    "Distilled": {
        **_DRAWS,
        **_own("beta"),
        **_as(_teacher, teacher_model_name_or_path="algos.{algo}.teacher"),
        **_as(_same, teacher_model_revision="algos.{algo}.revision"),
        **_as(None, teacher_model_init_kwargs="algos.{algo}.teacher"),
    },
    "GRPO": _ONLINE,
    "RLOO": {**_ONLINE, **_own("normalize_advantages")},
    "SFT": {
        **_own("max_length completion_only_loss assistant_only_loss"),
        **_as(None, dataset_text_field="datasets.hf.columns", chat_template_path="datasets.hf.chat"),
        **_as(_packing, packing="training.padding_free"),
        **_as(_nothing, packing_strategy="training.padding_free"),
        **_as(_unpadded, padding_free="training.padding_free"),
    },
    "KTO": {
        **_own("beta desirable_weight undesirable_weight"),
        **_as(None, max_length="generation.max_new_tokens"),
        **_ANCHOR,
    },
    "ORPO": {**_own("beta"), **_as(None, max_length="generation.max_new_tokens")},
    "RM": {},
    "SimPO": {
        **_as(lambda value, _: "" if value == "simpo" else None, loss_type="algos.SimPO.simpo_gamma"),
        **_own("beta simpo_gamma cpo_alpha"),
        **_as(None, max_length="generation.max_new_tokens"),
    },
}
"""Arguments of one algorithm's configuration, which replace those of all."""
_MADE_OF_NONE = {"disable_tqdm", "accelerator_config", "debug", "pad_to_multiple_of"}
"""Arguments that `transformers` has values for which a configuration was given none."""
_ALWAYS = {"disable_dropout": True}
"""Arguments that hold for every training here."""
_OF_PAIRS = {"DPO", "ORPO", "RM", "SimPO"}
_EXISTING = {*_OF_PAIRS, "KTO"}
_DRAWING = {"Distilled", "GRPO", "RLOO"}
CONFIGS = {
    **{algo: f"trl.trainer.{algo.lower()}_config:{algo}Config" for algo in ("DPO", "GRPO", "RLOO", "KTO", "SFT")},
    "Distilled": "trl.trainer.distillation_config:DistillationConfig",
    "ORPO": "trl.experimental.orpo:ORPOConfig",
    "RM": "trl.trainer.reward_config:RewardConfig",
    "SimPO": "trl.experimental.cpo:CPOConfig",
}
"""Algorithm -> the configuration of TRL."""
_PLAIN = re.compile(r"[A-Za-z_./][\w./-]*")


def from_trl(config: object, algo: str = "", devices: int = 1) -> FromTRL:
    """Translate a configuration of TRL to settings.

    Args:
        config: One of `CONFIGS`, or a dict of arguments of one. A CPOConfig is taken as SimPO's.
        algo: Algorithm of a dict: ``GRPO``, ``DPO``, ...
        devices: Devices on which TRL would train; they multiply the batch of a step.

    Returns:
        Overrides for all that has a counterpart, TRL's defaults included, and what has none.

    Raises:
        ConfigError: It is another configuration, or a dict has an argument that TRL does not have.
    """
    given: dict[str, Any]
    if isinstance(config, Mapping):
        if algo not in OF_ALGORITHM:
            raise ConfigError(f"from_trl: {unknown_name('algorithm', algo, OF_ALGORITHM)} Say whose the dict is.")
        defaults = _defaults(_class(algo))
        for name in config:
            if name not in defaults:
                nearest, _, _ = unknown_name("argument", str(name), defaults).partition(" Known: ")  # 130 of them
                raise ConfigError(f"from_trl: {nearest}")
            if isinstance(config[name], str) and _takes_no_text(_class(algo), str(name)):
                raise ConfigError(
                    f"from_trl: {name}={config[name]!r} is a text; give a number, true or false as such"
                )
        given = {**defaults, **config}
    else:
        kinds = {kind.__name__: kind for kind in type(config).__mro__}
        named = {path.partition(":")[2]: each for each, path in CONFIGS.items()}
        kind = next((name for name in kinds if name in named), "")
        if not kind:
            raise ConfigError(
                f"from_trl: {type(config).__name__} has no counterpart here; it takes one of TRL's "
                f"{', '.join(named)}, or a dict with algo={', '.join(named.values())}"
            )
        algo, defaults = named[kind], _defaults(kinds[kind])
        given = {name: vars(config)[name] for name in defaults if name in vars(config)}
        given = {**defaults, **given}
    table, about = counterparts(algo), {**given, "devices": devices, "algo": algo}
    overrides, without = list(_fixed(algo, given)), []
    for name, value in given.items():
        is_default = _plain(value) == _plain(defaults[name])
        found = table.get(name)
        told = found.told(_plain(value), about) if found and found.told else None
        if found is not None and told is not None:
            overrides += [f"{found.key}={_text(told)}"] if told != "" else []
        elif value in (None, "") or name in _MADE_OF_NONE or value == _ALWAYS.get(name):
            continue
        elif not is_default or (found and found.told):
            without.append(f"{name}={_plain(value)}" + (f" (see {found.key})" if found else ""))
    return FromTRL(overrides, without)


def counterparts(algo: str) -> dict[str, Counterpart]:
    """Argument of a configuration of TRL -> its counterpart, with the algorithm in the key."""
    table = {**SHARED, **OF_ALGORITHM[algo]}
    return {name: Counterpart(each.key.format(algo=algo), each.told) for name, each in table.items()}


def keys_of(name: str, algo: str = "") -> list[str]:
    """Return the keys of an argument: of an algorithm, else of any, with ``algos.<NAME>`` in them then."""
    if algo in OF_ALGORITHM:
        table = counterparts(algo)
        return [table[name].key] if name in table else []
    found = [table[name].key for table in (SHARED, *OF_ALGORITHM.values()) if name in table]
    return list(dict.fromkeys(re.sub(r"^algos\.[^.]+", "algos.<NAME>", key) for key in found))


def _fixed(algo: str, given: Values) -> Iterator[str]:
    """Yield the settings that follow from the algorithm, such as its kind of sampling and the number of rounds."""
    yield f"algos=[{algo}]"
    if algo in _EXISTING:
        yield f"algos.{algo}.pairs=existing"
    if algo not in _DRAWING:
        yield "rounds_of_training=1"
        return
    yield f"algos.{algo}.sampling=online"
    rounds = _whole(given["num_train_epochs"], given)
    if rounds is not None and not str(_plain(given["lr_scheduler_type"])).startswith("constant"):
        yield f"algos.{algo}.horizon={rounds}"


def _class(algo: str) -> type:
    module, _, name = CONFIGS[algo].partition(":")
    found: type = getattr(import_module(module), name)
    return found


def _takes_no_text(kind: type, name: str) -> bool:
    """Return whether an argument of a configuration of TRL is a number or a Boolean, and never text."""
    (kinds,) = (str(each.type) for each in fields(kind) if each.name == name)
    return bool(re.search(r"\b(bool|int|float)\b", kinds)) and not re.search(r"\b(str|dict|list)\b", kinds)


@cache
def _defaults(kind: type) -> dict[str, Any]:
    """Return the arguments of a configuration with their default values."""
    found = {}
    for each in fields(kind):
        made = each.default_factory() if each.default_factory is not MISSING else None
        found[each.name] = each.default if each.default is not MISSING else made
    return found


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _text(value: Any) -> str:
    """Format a value as Hydra reads it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        quoted: str = QuotedString(value, Quote.single).with_quotes()
        return quoted
    return str(value)
