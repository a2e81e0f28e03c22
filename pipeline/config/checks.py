"""Rules that types cannot express: ranges, and fields that must fit each other. All faults are told at once."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from pipeline.config.ranks import devices_per_training
from pipeline.config.schema import (
    AUTO,
    REWARD_NAMES,
    AlgoConfig,
    Attention,
    BestOfNConfig,
    Config,
    DatasetConfig,
    DPOConfig,
    DPOLoss,
    GRPOConfig,
    HeadType,
    ModelConfig,
    PairSource,
    PolicyAlgoConfig,
    QSharpConfig,
    SFTConfig,
    Strategy,
    ValueAlgoConfig,
)
from pipeline.errors import ConfigError, unknown_name

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_config(config: Config) -> None:
    """Refuse a request that cannot work.

    Raises:
        ConfigError: Lists every rule that is broken.
    """
    problems = list(_problems(config))
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        raise ConfigError("\n".join([f"{len(problems)} settings are wrong:", *(f"  - {p}" for p in problems)]))


def _problems(config: Config) -> Iterator[str]:
    yield from _experiment(config)
    yield from _numbers(config)
    yield from _ranks(config)
    yield from _tables(config)


def _experiment(config: Config) -> Iterator[str]:
    name = config.experiment.name
    if not _NAME.fullmatch(name):
        yield (
            f"experiment.name={name!r} is not a plain name: it becomes a folder under {config.output_dir}/, so "
            "use up to 100 letters, digits, '.', '_' or '-', starting with a letter or digit"
        )
    seeds = config.experiment.seeds
    if not seeds:
        yield "experiment.seeds is empty: give at least one, for example experiment.seeds=[0]"
    if len(set(seeds)) != len(seeds):
        yield f"experiment.seeds={seeds} names a seed twice"
    yield from (f"experiment.seeds: {seed} is negative" for seed in seeds if seed < 0)


def _numbers(config: Config) -> Iterator[str]:
    at_least_one = {
        "rounds_of_training": config.rounds_of_training,
        "execution.workers": config.execution.workers,
        "distributed.num_gpus": config.distributed.num_gpus,
        "execution.shard_size": config.execution.shard_size,
        "execution.models_in_memory": config.execution.models_in_memory,
        "execution.retry.worker_lost": config.execution.retry.worker_lost,
        "execution.retry.hang": config.execution.retry.hang,
        "execution.retry.out_of_memory": config.execution.retry.out_of_memory,
        "execution.retry.device": config.execution.retry.device,
        "execution.retry.transient": config.execution.retry.transient,
        "execution.retry.device_failures": config.execution.retry.device_failures,
        "system.cpu_threads": config.system.cpu_threads,
        "training.micro_batch_size": config.training.micro_batch_size,
        "training.gpus_per_job": config.training.gpus_per_job,
        "training.memory_mb": config.training.memory_mb,
        "generation.batch_size": config.generation.batch_size,
        "generation.memory_mb": config.generation.memory_mb,
        "generation.max_new_tokens": config.generation.max_new_tokens,
        "data_collection.prompts_per_round": config.data_collection.prompts_per_round,
        "data_collection.samples_per_example": config.data_collection.samples_per_example,
        "data_collection.reward_batch_size": config.data_collection.reward_batch_size,
        "evaluation.num_prompts": config.evaluation.num_prompts,
        "evaluation.num_samples": config.evaluation.num_samples,
        "evaluation.bootstrap_samples": config.evaluation.bootstrap_samples,
    }
    at_least_one |= {f"algos.{name}.memory_mb": algo.memory_mb for name, algo in config.algos.items()}
    for key, value in at_least_one.items():
        if value is not None and value < 1:
            automatic = ", or null to take what the machine has" if key == "execution.workers" else ""
            yield f"{key}={value}: must be at least 1{automatic}"
    jobs = config.execution.jobs_per_device
    if jobs != AUTO and (not isinstance(jobs, int) or jobs < 1):
        yield (
            f"execution.jobs_per_device={jobs}: must be how many jobs a GPU takes at once, 1 or more, or 'auto' "
            "to measure how many fit"
        )
    positive = {
        "generation.temperature": config.generation.temperature,
        "execution.heartbeat_s": config.execution.heartbeat_s,
        "execution.heartbeat_timeout_s": config.execution.heartbeat_timeout_s,
        "execution.progress_timeout_s": config.execution.progress_timeout_s,
        "execution.job_timeout_s": config.execution.job_timeout_s,
        "execution.start_timeout_s": config.execution.start_timeout_s,
    }
    for key, number in positive.items():
        if number is not None and not (number > 0 and math.isfinite(number)):
            yield f"{key}={number}: must be a positive number"
    port = config.distributed.master_port
    if port is not None and not 1024 <= port <= 65535:
        yield f"distributed.master_port={port}: must be between 1024 and 65535, or null to find a free one"
    not_negative = {
        "training.weight_decay": config.training.weight_decay,
        "training.grad_clip": config.training.grad_clip,
        "training.warmup_steps": config.training.warmup_steps,
        "training.checkpoint_every_steps": config.training.checkpoint_every_steps,
        "training.checkpoint_every_minutes": config.training.checkpoint_every_minutes,
        "evaluation.sample_prompts": config.evaluation.sample_prompts,
        "execution.stop_grace_s": config.execution.stop_grace_s,
        "execution.retry.wait_s": config.execution.retry.wait_s,
        "execution.retry.max_wait_s": config.execution.retry.max_wait_s,
        "system.clear_cache_interval": config.system.clear_cache_interval,
    }
    for key, number in not_negative.items():
        if not number >= 0:
            yield f"{key}={number}: must be 0 or more"
    if config.execution.heartbeat_timeout_s <= config.execution.heartbeat_s:
        yield (
            f"execution.heartbeat_timeout_s={config.execution.heartbeat_timeout_s}: must be longer than the "
            f"{config.execution.heartbeat_s} s between heartbeats (execution.heartbeat_s)"
        )
    if not 0 < config.generation.top_p <= 1:
        yield f"generation.top_p={config.generation.top_p}: must be above 0 and at most 1 (1 keeps every token)"
    if not 0 < config.evaluation.confidence < 1:
        yield f"evaluation.confidence={config.evaluation.confidence}: must be between 0 and 1, for example 0.95"
    for eta in config.evaluation.etas:
        if not eta > 0:
            yield f"evaluation.etas: {eta} must be above 0; inf is the reference policy"
    if len(set(config.evaluation.etas)) != len(config.evaluation.etas):
        yield f"evaluation.etas={config.evaluation.etas} names a value twice"
    if config.evaluation.split not in ("test", "validation"):
        yield f"evaluation.split='{config.evaluation.split}': must be 'test' or 'validation'"


def _ranks(config: Config) -> Iterator[str]:
    asked, several = config.distributed, devices_per_training(config)
    if several > 1 and not config.system.use_parallel_execution:
        yield (
            "system.use_parallel_execution=false runs everything in one process, and a training asks for "
            f"{several} devices: use training.gpus_per_job=1 and distributed.enabled=false, or leave it true"
        )
    if asked.enabled and asked.num_gpus is None and asked.gpu_ids is None and config.training.gpus_per_job == 1:
        yield (
            "distributed.enabled=true lets one training use several GPUs: say how many with "
            "training.gpus_per_job, or which with distributed.num_gpus or distributed.gpu_ids"
        )
    for key, strategy in (("training", config.training.strategy), ("distributed", asked.strategy)):
        if strategy is Strategy.single and config.training.gpus_per_job > 1:
            yield (
                f"{key}.strategy=single with training.gpus_per_job={config.training.gpus_per_job}: it trains on "
                "one device. Use ddp, or fsdp for models that do not fit on one"
            )


def _tables(config: Config) -> Iterator[str]:
    if not any(algo.enabled for algo in config.algos.values()):
        yield f"no algorithm is enabled: set algos.<NAME>.enabled=true for one of {', '.join(config.algos)}"
    for table, names in (("datasets", config.datasets), ("models", config.models), ("algos", config.algos)):
        if not names:
            yield f"{table} is empty: name at least one"
        yield from (f"{table}.{name}: not a plain name" for name in names if not _NAME.fullmatch(name))
    for name, taken_by in (("reference", "the reference policy"), ("dataset", "the preparation of datasets")):
        if name in config.algos:
            yield f"algos.{name}: this name is taken by {taken_by}"
    for name, algo in config.algos.items():
        if algo.enabled:
            yield from _algo(f"algos.{name}", algo, config)
            yield from _attention(f"algos.{name}", algo, config)
    for name, dataset in config.datasets.items():
        yield from _dataset(f"datasets.{name}", dataset, config)
    for name, model in config.models.items():
        yield from _model(f"models.{name}", model)


def _algo(key: str, algo: AlgoConfig, config: Config) -> Iterator[str]:
    if algo.batch_size < 1:
        yield f"{key}.batch_size={algo.batch_size}: must be at least 1"
    if algo.epochs < 1:
        yield f"{key}.epochs={algo.epochs}: must be at least 1"
    if algo.num_workers < 0:
        yield f"{key}.num_workers={algo.num_workers}: must be 0 or more"
    if not (algo.learning_rate > 0 and math.isfinite(algo.learning_rate)):
        yield f"{key}.learning_rate={algo.learning_rate}: must be a positive number"
    yield from _groups(key, algo, config)
    yield from _objective(key, algo)
    if not isinstance(algo, ValueAlgoConfig):
        return
    if not algo.eta > 0:
        yield (
            f"{key}.eta={algo.eta}: must be above 0. The tilt is exp(value / eta), so smaller is stronger "
            "(0.1 is strong, 1 is mild) and inf is the reference policy itself"
        )
    rate = algo.head_learning_rate
    if rate is not None and not (rate > 0 and math.isfinite(rate)):
        yield f"{key}.head_learning_rate={rate}: must be a positive number, or null for learning_rate"
    if algo.top_k < 1:
        yield f"{key}.top_k={algo.top_k}: must be at least 1"
    if not 0 <= algo.min_p < 1:
        yield f"{key}.min_p={algo.min_p}: must be 0 or more and below 1"


def _groups(key: str, algo: AlgoConfig, config: Config) -> Iterator[str]:
    """Completions that are compared with each other must be there, and in the same batch."""
    micro = config.training.micro_batch_size
    if isinstance(algo, (PolicyAlgoConfig, BestOfNConfig)):
        compared = not isinstance(algo, SFTConfig) and not (
            isinstance(algo, DPOConfig) and algo.pairs is PairSource.existing
        )
        least = 2 if compared else 1
        if algo.num_generations < least:
            why = ", since the completions of a prompt are compared with each other" if compared else ""
            yield f"{key}.num_generations={algo.num_generations}: must be at least {least}{why}"
    if isinstance(algo, GRPOConfig) and algo.num_generations >= 2:
        for name, size in ((f"{key}.batch_size", algo.batch_size), ("training.micro_batch_size", micro)):
            if size % algo.num_generations:
                yield (
                    f"{name}={size}: would split a group, as it is no multiple of {key}.num_generations="
                    f"{algo.num_generations}. Use {max(1, size // algo.num_generations) * algo.num_generations}"
                )
    pairs = [(f"{key}.batch_size", algo.batch_size)] if isinstance(algo, (DPOConfig, BestOfNConfig)) else []
    reward_model = getattr(algo, "reward_model", None)
    if reward_model is not None:
        pairs.append((f"{key}.reward_model.batch_size", reward_model.batch_size))
        if reward_model.epochs < 1:
            yield f"{key}.reward_model.epochs={reward_model.epochs}: must be at least 1"
        if not (reward_model.learning_rate > 0 and math.isfinite(reward_model.learning_rate)):
            yield f"{key}.reward_model.learning_rate={reward_model.learning_rate}: must be a positive number"
    if pairs:
        pairs.append(("training.micro_batch_size", micro))
    for name, size in pairs:
        if size < 1 or size % 2:
            yield f"{name}={size}: must be even, since both completions of a pair count"


def _objective(key: str, algo: AlgoConfig) -> Iterator[str]:
    preferences = getattr(algo, "preferences", None)
    if preferences is not None:
        if preferences.pairs_per_prompt < 1:
            yield f"{key}.preferences.pairs_per_prompt={preferences.pairs_per_prompt}: must be at least 1"
        if not preferences.beta >= 0:
            yield f"{key}.preferences.beta={preferences.beta}: must be 0 or more"
    if isinstance(algo, PolicyAlgoConfig) and algo.lora.rank < 0:
        yield f"{key}.lora.rank={algo.lora.rank}: must be 0 (no adapters) or more"
    if isinstance(algo, DPOConfig):
        if not algo.beta > 0:
            yield f"{key}.beta={algo.beta}: must be above 0"
        if algo.loss_type is DPOLoss.exo_pair and not 0 < algo.label_smoothing < 1:
            yield (
                f"{key}.label_smoothing={algo.label_smoothing}: the loss exo_pair needs it between 0 and 1, "
                "for example 0.001"
            )
        if algo.loss_type is not DPOLoss.exo_pair and not 0 <= algo.label_smoothing < 0.5:
            yield f"{key}.label_smoothing={algo.label_smoothing}: must be 0 or more and below 0.5"
        if algo.sft_weight < 0:
            yield f"{key}.sft_weight={algo.sft_weight}: must be 0 or more"
    if isinstance(algo, GRPOConfig):
        if algo.beta < 0:
            yield f"{key}.beta={algo.beta}: must be 0 (no KL term) or more"
        if not 0 < algo.epsilon < 1:
            yield f"{key}.epsilon={algo.epsilon}: must be between 0 and 1"
        if algo.epsilon_high is not None and algo.epsilon_high <= 0:
            yield f"{key}.epsilon_high={algo.epsilon_high}: must be above 0, or null to take epsilon"
    if isinstance(algo, QSharpConfig):
        if algo.atoms < 1:
            yield f"{key}.atoms={algo.atoms}: must be 1 (a single probability) or more"
        if not algo.value_min < algo.value_max:
            yield f"{key}.value_min={algo.value_min} must be below {key}.value_max={algo.value_max}"


def _attention(key: str, algo: AlgoConfig, config: Config) -> Iterator[str]:
    flash = config.system.attn_impl is Attention.flash_attention_2
    if flash and isinstance(algo, ValueAlgoConfig) and algo.head is HeadType.v:
        yield (
            f"{key}.head=v with system.attn_impl=flash_attention_2: the candidates of a step are told apart by a "
            f"mask that FlashAttention-2 does not take. Use system.attn_impl=sdpa, or {key}.head=q"
        )


def _dataset(key: str, dataset: DatasetConfig, config: Config) -> Iterator[str]:
    sizes = {"test": dataset.test_size, "validation": dataset.validation_size}
    for split, size in sizes.items():
        if size < 1:
            yield f"{key}.{split}_size={size}: must be at least 1"
    yield from _rewards(key, dataset)
    size = sizes.get(config.evaluation.split, 0)
    if 1 <= size < config.evaluation.num_prompts:
        yield (
            f"evaluation.num_prompts={config.evaluation.num_prompts}: the {config.evaluation.split} split of "
            f"{key} has {size} prompts; ask for fewer or raise {key}.{config.evaluation.split}_size"
        )


def _rewards(key: str, dataset: DatasetConfig) -> Iterator[str]:
    grading = dataset.grading
    weights = dataset.rewards or {dataset.reward: 1.0}
    for name, weight in weights.items():
        used = str((grading.options.get(name) or {}).get("use", name))
        if used not in REWARD_NAMES and "." not in used:
            yield (
                f"{key}: " + unknown_name("reward", used, REWARD_NAMES) + " Or give the dotted path of a function."
            )
        if not math.isfinite(weight):
            yield f"{key}.rewards.{name}={weight}: must be a finite number"
    if weights and not any(weights.values()):
        yield f"{key}.rewards: every weight is 0, so nothing would be rewarded"
    for name in grading.options.keys() - weights.keys():
        yield f"{key}.grading.options: " + unknown_name("reward", name, weights)
    if grading.correct_by is not None and grading.correct_by not in weights:
        yield f"{key}.grading.correct_by: " + unknown_name("reward", grading.correct_by, weights)
    for name in ("timeout_s", "memory_gib", "start_timeout_s"):
        if not (getattr(grading, name) > 0 and math.isfinite(getattr(grading, name))):
            yield f"{key}.grading.{name}={getattr(grading, name)}: must be a positive number"
    if grading.processes < 1:
        yield f"{key}.grading.processes={grading.processes}: must be at least 1"


def _model(key: str, model: ModelConfig) -> Iterator[str]:
    if model.kind == "hf" and not model.path:
        yield f"{key}.path is missing: a model of kind 'hf' needs a folder or hub id"
