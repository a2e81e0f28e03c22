"""Which keys and flags there are, and what is said of a request that cannot be: one line with what is allowed."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any, NoReturn

import yaml
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException

from pipeline.config.place import conf_dir
from pipeline.config.schema import Config
from pipeline.config.tables import TABLES, all_shipped
from pipeline.config.values import one_line
from pipeline.errors import ConfigError, unknown_name

COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, OSError, RecursionError)
"""What composing a configuration raises of what a user wrote."""
_LONGEST = 1500
"""Characters of a message, so that a setting of thousands does not bury what is said of it."""

GROUPS = {name: table.group for name, table in TABLES.items() if table.group != name}
"""Tables of settings whose entries are chosen by a group of another name."""

_OTHER_NAMES = {
    "activation_checkpointing": "gradient_checkpointing",
    "file": "path",
    "filename": "path",
    "kl_coef": "algos.GRPO.beta",
    "lr": "learning_rate",
    "lora_r": "rank",
    "generation_batch_size": "steps_per_generation",
    "log_completions": "evaluation.sample_prompts",
    "log_unique_prompts": "evaluation.sample_prompts",
    "lora_alpha": "alpha",
    "lr_scheduler_type": "schedule",
    "max_completion_length": "max_new_tokens",
    "max_grad_norm": "grad_clip",
    "max_length": "max_new_tokens",
    "num_completions_to_print": "evaluation.sample_prompts",
    "num_generations_eval": "evaluation.num_samples",
    "num_iterations": "epochs",
    "optim": "training.optimizer",
    "packing": "padding_free",
    "packing_strategy": "padding_free",
    "per_device_eval_batch_size": "generation.batch_size",
    "per_device_train_batch_size": "micro_batch_size",
    "precompute_ref_batch_size": "micro_batch_size",
    "r": "rank",
    "ref_model": "reference",
    "reward_funcs": "rewards",
    "reward_weights": "rewards",
    "run_name": "experiment.name",
    "seed": "experiment.seeds",
    "save_steps": "training.checkpoint_every_steps",
    "sync_ref_model": "reference",
    "torch_empty_cache_steps": "system.clear_cache_interval",
    "truncation_mode": "generation.long_prompts",
}
"""What other programs call a setting, where no resemblance leads to it: its key, or the last part of it."""
_EVERY_ROUND = (
    "There is none: every round is evaluated when it ends, and rounds_of_training says how many there are."
)
_VLLM = "Write generation.backend=vllm; it has no settings of its own but generation.batch_size and memory_mb."
_CONTINUOUS = "There is none: generation.backend=own gives a place that becomes free to the next text by itself."
_TEMPLATE = "Write datasets.NAME.chat=true: the model's own chat template is used, and is given no arguments."
_CURVES = "There is none: every training keeps its curve, which the report of the run shows."
_ADVICE = {
    "bf16": "Write system.dtype=bfloat16.",
    "chat_template_kwargs": _TEMPLATE,
    "chat_template_path": _TEMPLATE,
    "dataset_text_field": "Write 'datasets.NAME.columns={{prompt: COLUMN}}'.",
    "deepspeed": "There is none: training.gpus_per_job and training.strategy spread a training over GPUs.",
    "eval_dataset": "Write datasets.NAME.test_path; without one, rows of the training split are kept back.",
    "eval_on_start": _EVERY_ROUND,
    "eval_steps": _EVERY_ROUND,
    "eval_strategy": _EVERY_ROUND,
    "fp16": "Write system.dtype=float16.",
    "fsdp": "Write training.strategy=fsdp, with training.gpus_per_job.",
    "gradient_accumulation_steps": (
        "There is none: algos.NAME.batch_size is the batch of a step, and training.micro_batch_size how much of "
        "it a device computes at once."
    ),
    "logging_steps": _CURVES,
    "logging_strategy": _CURVES,
    "max_prompt_length": (
        "There is none: prompts are taken whole; one that is longer than the model can read is refused, or cut to "
        "its last tokens with generation.long_prompts=truncate."
    ),
    "max_steps": (
        "There is none: steps follow from the data of a round, data_collection.prompts_per_round, and from "
        "algos.NAME.epochs."
    ),
    "ray": (
        "Write execution.backend=ray, with execution.ray.address for a cluster that is there; --ray is of "
        "`python -m pipeline slurm write --ray`."
    ),
    "model_init_kwargs": "Each is a key: models.hf.path, models.hf.revision, system.dtype, system.attn_impl.",
    "model_name_or_path": "Write model=hf models.hf.path={given}.",
    "num_train_epochs": (
        "Write algos.NAME.epochs; of GRPO and RLOO rounds_of_training, as their epochs are TRL's num_iterations."
    ),
    "push_to_hub": "There is none: python -m pipeline export NAME --to FOLDER --push REPO does that afterwards.",
    "resume_from_checkpoint": "There is none: the same command goes on from where its run was.",
    "save_strategy": "There is none: training.checkpoint_every_steps and checkpoint_every_minutes say how often.",
    "save_total_limit": "There is none: a checkpoint is kept until its training is done.",
    "train_dataset": "Write dataset=hf datasets.hf.path={given}, or dataset=jsonl and the like for files.",
    "transformers_continuous_batching_config": _CONTINUOUS,
    "use_transformers_continuous_batching": _CONTINUOUS,
    "use_transformers_paged": _CONTINUOUS,
    "use_vllm": _VLLM,
    "warmup_ratio": "There is none: training.warmup_steps is a number of optimizer steps, not a part of them.",
}
"""What other programs have and is no key here, or another one with another value: what to do."""


def known_keys() -> list[str]:
    """Every key that may be set with what ships, dotted."""
    sections = {f"{table}.{name}": schema for table in TABLES for name, schema in all_shipped(table).items()}
    return [*keys_of(Config), *(key for prefix, schema in sections.items() for key in keys_of(schema, prefix))]


def keys_of(schema: type[Any], prefix: str = "") -> list[str]:
    """The keys of a class of settings, those of settings inside it included."""
    return list(_leaves(schema(), f"{prefix}." if prefix else ""))


def _leaves(settings: Any, prefix: str) -> Iterable[str]:
    for item in fields(settings):
        value = getattr(settings, item.name)
        yield from _leaves(value, f"{prefix}{item.name}.") if is_dataclass(value) else [prefix + item.name]


def other_name(name: str) -> str:
    """The last part of a key by its name here, where another program calls it otherwise."""
    return _OTHER_NAMES.get(name, name)


def advice_on(key: str, given: str = "") -> str:
    """What to do about a setting of another program that has no key of the same meaning here, or "".

    Args:
        key: What was typed; its section does not matter.
        given: The value that was given with it.
    """
    name = key.rpartition(".")[2]
    advice = _ADVICE.get(name, _VLLM if name.startswith("vllm_") else "")
    return advice.format(given=given or "FOLDER_OR_HUB_ID")


def nearest_key(key: str, known: Iterable[str]) -> str | None:
    """The key that was probably meant: of the same section, else by the same last part, else the most alike."""
    keys = dict.fromkeys(known)
    section, _, last = key.rpartition(".")
    name = other_name(last)
    by_name: dict[str, str] = {}
    for each in sorted(keys, key=lambda one: one.count(".")):
        by_name.setdefault(each.rpartition(".")[2], each)
    if name in keys:
        return name
    if f"{section}.{name}" in keys:
        return f"{section}.{name}"
    same = [by_name[one] for one in (name, f"{name}s") if one in by_name]
    alike = [] if same and not section else get_close_matches(key, keys, n=1, cutoff=0.8 if same else 0.6)
    close = get_close_matches(name, by_name, n=1, cutoff=0.7) or [
        each for each in by_name if each.startswith(f"{name}_")
    ]
    near = alike or same or [by_name[each] for each in close]
    if not near:
        return None
    table, _, rest = near[0].partition(".")
    return (
        f"{table}.<NAME>.{rest.partition('.')[2]}"
        if table in TABLES and table != key.partition(".")[0]
        else near[0]
    )


def unknown_key(key: str, given: str = "", known: Iterable[str] = ()) -> str:
    """What to say of a key that there is not: the one that was meant, and which there are.

    Args:
        key: What was typed.
        given: The value that was given with it.
        known: The keys of the request; those of what ships are known besides.
    """
    keys = list(dict.fromkeys([*known, *known_keys()]))
    near = nearest_key(key, keys)
    hint = advice_on(key, given) or (f"Did you mean '{near}'?" if near else "")
    section = key.rpartition(".")[0]
    while section and not any(each.startswith(f"{section}.") for each in keys):
        section = section.rpartition(".")[0]
    inside = [each.removeprefix(f"{section}.") for each in keys if not section or each.startswith(f"{section}.")]
    listed = ", ".join(dict.fromkeys(each.partition(".")[0] for each in inside))
    return f"unknown key '{key}'. {hint}{' ' if hint else ''}Known{f' in {section}' if section else ''}: {listed}."


def explain(error: Exception) -> ConfigError:
    """Say in one message what is wrong with what the user wrote, and what to try."""
    if isinstance(error, ConfigError):
        return error
    said = _explanation(error)
    return ConfigError(said if len(said) <= _LONGEST else f"{said[: _LONGEST // 2]} ... {said[-_LONGEST // 2 :]}")


def _explanation(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "the configuration is nested too deeply, or refers to itself (${...})"
    if isinstance(error, MissingConfigException) and "/" in (error.missing_cfg_file or ""):
        group, _, choice = (error.missing_cfg_file or "").rpartition(
            "/"
        )  # of one in a list Hydra gives no options
        shipped = [file.stem for file in (conf_dir() / group).glob("*.yaml")]
        return unknown_choice(group, choice, error.options or shipped)
    key = getattr(error, "full_key", "") or ""
    cause = error.__cause__
    said = one_line(f"{error}: {cause}" if cause is not None and str(cause) not in str(error) else str(error))
    if name := re.search(r"Interpolation key '(.*)' not found", said):
        return f"{key}: refers to ${{{name[1]}}}, and nothing sets '{name[1]}'"
    if not isinstance(error, COMPOSITION_ERRORS):
        said = f"this configuration cannot be composed ({type(error).__name__}: {said})"
    return f"{key}: {said}" if key else said


def unknown_choice(group: str, name: str, options: Iterable[str]) -> str:
    """What to say of a file that a group does not have."""
    said = unknown_name({"algos": "algorithm"}.get(group, group), name, options)
    said += f" (files in {group}/ of conf/ and of --config-dir)"
    own: Mapping[str, str] = {
        "algos": f" To add your own write algos.{name}.class_path=my_module.MyAlgorithm, and leave it out here.",
        "model": f" For a folder or an id of the hub: model=hf models.hf.path={name}",
    }
    return said + own.get(group, "")


# -- arguments ---------------------------------------------------------------------------------------------------
# The words of a command line that are no settings: Hydra's flags, read before it sees them. Settings are
# written KEY=VALUE. Who writes ``--seed 3`` has in mind a key, and who writes ``--num-gpu 2`` a flag.


_ASKED = ("--help", "--hydra-help", "--version", "--resolve", "--run", "--multirun", "--shell-completion")
_VALUED = ("--cfg", "--package", "--config-path", "--config-name", "--config-dir", "--experimental-rerun")
_SHORT = {"--help": ("-h",), "--run": ("-r",), "--multirun": ("-m",), "--cfg": ("-c",), "--package": ("-p",)}
_SHORT |= {"--config-path": ("-cp",), "--config-name": ("-cn",), "--config-dir": ("-cd",)}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}. Settings are written KEY=VALUE")


def read_flags(arguments: Sequence[str], own: Sequence[str] = ()) -> argparse.Namespace:
    """Hydra's flags of a command line, and its settings as `overrides`.

    Args:
        arguments: A command line without the flags of this package.
        own: Names of those flags, to be suggested.

    Raises:
        ConfigError: A flag is unknown; names what was probably meant.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    for flag in _ASKED:
        parser.add_argument(flag, *_SHORT.get(flag, ()), action="store_true")
    for flag in _VALUED:
        parser.add_argument(
            flag, *_SHORT.get(flag, ()), choices=("job", "hydra", "all") if flag == "--cfg" else None
        )
    parser.add_argument("--info", "-i", nargs="?", const="all")
    asked, unknown = parser.parse_known_intermixed_args(list(arguments))
    if wrong := [word.partition("=")[0] for word in unknown if word.startswith("-")]:
        flag = wrong[0]
        names = [*own, *_ASKED, *_VALUED]
        near = [each for each in own if each.startswith(f"{flag}-")] or get_close_matches(flag, names, 1, 0.8)
        word = flag.strip("-").replace("-", "_")
        key = nearest_key(word, known_keys())
        meant = (
            f"Did you mean {near[0] if near else f'{key}=...'}?"
            if near or key
            else f"Flags are {', '.join(names)}"
        )
        raise ConfigError(f"unknown flag {flag}. Settings are written KEY=VALUE. {advice_on(word) or meant}")
    return asked


def for_hydra(asked: argparse.Namespace, settings: Sequence[str]) -> list[str]:
    """The command line that Hydra is given: all settings together, as it takes none on both sides of a flag.

    ``--cfg job`` prints the values that a run would have, and no expressions.
    """
    flags = [flag for flag in _ASKED if getattr(asked, flag[2:].replace("-", "_"))]
    for flag in (*_VALUED, "--info"):
        value = getattr(asked, flag[2:].replace("-", "_"))
        flags += [] if value is None else [flag, value]
    resolved = ["--resolve"] if asked.cfg == "job" and not asked.resolve else []
    return [*settings, *flags, *resolved]
