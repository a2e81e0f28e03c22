"""Every key that may be set, and the one that somebody had in mind who wrote another word."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from pipeline.config.schema import Config
from pipeline.config.tables import TABLES, all_shipped

GROUPS = {name: table.group for name, table in TABLES.items() if table.group != name}
"""Tables of settings whose entries are chosen by a group of another name."""
NAMED_GROUPS = tuple(table.group for table in TABLES.values())
"""Groups that take several choices at once."""
_NAME = re.compile(r"[A-Za-z][\w-]*")
"""What a user may well call an experiment."""
COMMANDS = (
    *("check", "compare", "export", "fetch", "figures", "gpus", "help", "launch", "logs"),
    *("report", "run", "show", "slurm", "status", "store", "sweep", "track", "why"),
)
"""Those of ``python -m pipeline``."""
_ALIASES = {
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
_CONTINUOUS = "Write generation.backend=transformers."
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
    keys = list(_leaves(Config(), ""))
    for table in TABLES:
        for name, schema in all_shipped(table).items():
            keys.extend(_leaves(schema(), f"{table}.{name}."))
    return keys


def own_keys() -> list[str]:
    """Keys that `register_schemas` has met last: of files, and of algorithms and datasets of the user's own."""
    repo = ConfigStore.instance().repo
    if "schema.yaml" not in repo:
        return []
    sections = {(table, name): node for table in TABLES for name, node in repo["schema.yaml"].node[table].items()}
    for table, group in GROUPS.items():
        files = repo.get(group, {}).items()
        sections |= {(table, file.removesuffix("_schema.yaml")): entry.node for file, entry in files}
    return [f"{table}.{name}.{key}" for (table, name), node in sections.items() for key in _keys(node)]


def _keys(node: DictConfig) -> Iterator[str]:
    """Keys of settings, those of settings inside them after each."""
    for name in map(str, node):
        yield name
        inside = node._get_node(name)
        if isinstance(inside, DictConfig) and not inside._is_none() and is_dataclass(OmegaConf.get_type(inside)):
            yield from (f"{name}.{key}" for key in _keys(inside))


def _leaves(node: Any, prefix: str) -> list[str]:
    found: list[str] = []
    for item in fields(node):
        value = getattr(node, item.name)
        found += _leaves(value, f"{prefix}{item.name}.") if is_dataclass(value) else [prefix + item.name]
    return found


def other_name(name: str) -> str:
    """The last part of a key by its name here, where another program calls it otherwise."""
    return _ALIASES.get(name, name)


def advice_on(key: str, given: str = "") -> str:
    """What to do about a setting of another program that has no key of the same meaning here, or "".

    Args:
        key: What was typed; its section does not matter.
        given: The value that was given with it.
    """
    name = key.rpartition(".")[2]
    advice = _ADVICE.get(name, _VLLM if name.startswith("vllm_") else "")
    return advice.format(given=given or "FOLDER_OR_HUB_ID")


def meant_by_word(word: str) -> str:
    """What to type instead of a word that cannot be read as a setting, or ""."""
    if word.count("[") != word.count("]") or word.count("{") != word.count("}"):
        return (
            "its brackets do not match, perhaps since the shell took it apart at a space: write it in quotes, as "
            "in 'experiment.seeds=[0, 1]'"
        )
    if "=" in word:
        return ""
    if word in COMMANDS:
        return f"that is a command of its own: python -m pipeline {word}"
    if word in (*NAMED_GROUPS, *TABLES, *(name for name, held in vars(Config()).items() if is_dataclass(held))):
        return f"settings are written KEY=VALUE; python -m pipeline help {word} says which there are."
    setting = nearest_setting(word, []) or _chosen_by(word)
    return "settings are written KEY=VALUE." + (f" Did you mean {setting}?" if setting else "")


def _chosen_by(word: str) -> str | None:
    """The setting that chooses what ships under a name; else the name of an experiment, if a word can be one."""
    groups = [table.group for name, table in TABLES.items() if word in all_shipped(name)]
    if groups:
        return " or ".join(f"'{group}=[{word}]'" if group in TABLES else f"{group}={word}" for group in groups)
    return f"experiment.name={word}" if _NAME.fullmatch(word) else None


def nearest_setting(name: str, values: Sequence[str]) -> str | None:
    """The setting that a word with values probably means, as it is typed; None where no key resembles it.

    Args:
        name: The word, without dashes.
        values: What was given with it.
    """
    found = _nearest_key(name)
    return None if found is None else f"{found[0]}={_value(values, found[1])}"


def _value(values: Sequence[str], default: Any) -> str:
    if isinstance(default, list):
        return f"[{','.join(values)}]" if values else "[...]"
    if not values:
        return str(not default).lower() if isinstance(default, bool) else "..."
    return values[0]


def _nearest_key(name: str) -> tuple[str, Any] | None:
    """The key whose last part, or whole, resembles a name most, and its default if that is known."""
    name = other_name(name)
    keys: dict[str, Any] = dict(_settings(Config(), ""))
    if "." in name:
        return name, keys.get(name)
    parts = [key.split(".", 2) for key in known_keys() if key.startswith(tuple(TABLES))]
    of_tables = [f"{each[0]}.<NAME>.{each[2]}" for each in parts if len(each) == 3]
    # A word that is the name of a setting means that one, and not another that resembles it.
    ways = [list(keys), sorted(of_tables, key=lambda key: key.count("."))]
    same = (key for some in ways for leaf in (name, f"{name}s") for key in some if key.rpartition(".")[2] == leaf)
    near = next(same, None) or _nearest_of(name, list(keys)) or _nearest_of(name, of_tables)
    return None if near is None else (near, keys.get(near))


def _nearest_of(name: str, keys: Sequence[str]) -> str | None:
    by_leaf: dict[str, str] = {}
    for key in keys:
        by_leaf.setdefault(key.rpartition(".")[2], key)
    whole = {key.replace(".", "_"): key for key in keys}
    found = (
        [leaf for leaf in (name, f"{name}s") if leaf in by_leaf]
        or [leaf for leaf in by_leaf if leaf.startswith(f"{name}_")]
        or get_close_matches(name, [*by_leaf, *whole], 1, 0.7)
    )
    return (by_leaf.get(found[0]) or whole[found[0]]) if found else None


def _settings(section: Any, prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for item in fields(section):
        value = getattr(section, item.name)
        if is_dataclass(value):
            found += _settings(value, f"{prefix}{item.name}.")
        elif prefix or item.name not in TABLES:
            found.append((prefix + item.name, value))
    return found
