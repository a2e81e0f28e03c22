"""What neither types nor ranges express: fields that must fit each other. All such faults are told at once.

Rules that join fields of one class of settings are its `problems`; here are those of the run and of what all have.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.config import schema
from pipeline.config.schema import Config, DatasetConfig, Optimizer, Schedule, Settings, Strategy
from pipeline.config.tables import REWARD_NAMES, SUFFIX, TABLES, as_typed, point_of, settings_of
from pipeline.config.user_code import ask
from pipeline.config.values import brief, held, refuse_all, value_problems
from pipeline.errors import ConfigError, PipelineError, defined_at, unknown_name

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_config(config: Config) -> None:
    """Refuse a request that cannot work.

    Raises:
        ConfigError: Lists every rule that is broken.
    """
    refuse_all(config_problems(config))


def config_problems(config: Config) -> list[str]:
    """What is wrong with a request, each once."""
    return list(dict.fromkeys(_problems(config)))


def check_together(*checks: Callable[[], object]) -> None:
    """Make checks that do not depend on each other, so that the faults of all are told at once.

    Raises:
        PipelineError: What the only one that failed said.
        ConfigError: What several said.
    """
    failed: list[PipelineError] = []
    for check in checks:
        try:
            check()
        except PipelineError as error:
            failed.append(error)
    if len(failed) == 1:
        raise failed[0]
    refuse_all(list(dict.fromkeys(str(error) for error in failed)))


def _problems(config: Config) -> Iterator[str]:
    used = {name: algo for name, algo in config.algos.items() if algo.enabled}
    singly = [as_typed(said, used) for said in value_problems(replace(config, algos=used))]
    yield from singly
    yield from _experiment(config)
    yield from _ranks(config)
    yield from _tables(config)
    # What joins numbers makes sense only of numbers that are right by themselves.
    if not singly:
        yield from _timeouts(config)
        yield from _repeats(config)
        yield from _joined(replace(config, algos=used))


def _experiment(config: Config) -> Iterator[str]:
    name = config.experiment.name
    if not _NAME.fullmatch(name):
        yield (
            f"experiment.name={brief(name)} is not a plain name: it becomes a folder under output_dir, so use up "
            "to 100 letters, digits, '.', '_' or '-', starting with a letter or digit"
        )
    if not config.experiment.seeds:
        yield "experiment.seeds is empty: give at least one, for example experiment.seeds=[0]"
    if "" in config.generation.stop:
        yield "generation.stop holds an empty text, which would end every completion at once: leave it out"


def _timeouts(config: Config) -> Iterator[str]:
    beats = config.execution
    if beats.heartbeat_timeout_s <= beats.heartbeat_s:
        yield (
            f"execution.heartbeat_timeout_s={beats.heartbeat_timeout_s}: must be longer than "
            f"execution.heartbeat_s={beats.heartbeat_s}"
        )


def _repeats(config: Config) -> Iterator[str]:
    lists: dict[str, Sequence[float | None]] = {
        "experiment.seeds": config.experiment.seeds,
        "evaluation.etas": config.evaluation.etas,
        "evaluation.budgets": config.evaluation.budgets,
        "evaluation.matched_kl": config.evaluation.matched_kl,
        **{f"models.{name}.seeds": model.references for name, model in config.models.items()},
    }
    for key, values in lists.items():
        if twice := [value for value, times in Counter(values).items() if times > 1]:
            yield f"{key}={brief(values)} names {twice[0]} twice"
    over = [algo for algo, point in map(point_of, config.algos) if "eta" in settings_of(point)]
    if config.evaluation.etas and over:
        yield (
            f"algos.{over[0]}.front and evaluation.etas: both set the strength of guidance, and what is tested "
            "would not be what a point of the front is called; leave one of them out"
        )


def _ranks(config: Config) -> Iterator[str]:
    asked, several, wide = config.distributed, schema.devices_per_training(config), config.generation.gpus_per_job
    if not config.system.use_parallel_execution and (max(several, wide) > 1):
        yield (
            "system.use_parallel_execution=false runs everything in one process, and a training asks for "
            f"{several} devices, generation.gpus_per_job for {wide}: ask for 1, or leave it true"
        )
    optimizer = config.training.optimizer
    if several > 1 and optimizer is not Optimizer.adamw and schema.spread(config)["strategy"] != Strategy.ddp.name:
        yield (
            f"training.optimizer={optimizer.name}: a training has {several} devices, and fsdp cannot spread what "
            "this one remembers. Use training.strategy=ddp, or training.optimizer=adamw"
        )
    if asked.enabled and asked.num_gpus is None and asked.ids is None and config.training.gpus_per_job == 1:
        yield (
            "distributed.enabled=true lets one training use several GPUs: say how many with "
            "training.gpus_per_job, or which with distributed.num_gpus or distributed.gpu_ids"
        )
    if asked.gpu_ids is not None and asked.gpu_list is not None:
        yield (
            f"distributed.gpu_ids={asked.gpu_ids} and distributed.gpu_list={asked.gpu_list} are two names of one "
            "setting; give one of them, and null for the other where a file has it"
        )
    for key, strategy in (("training", config.training.strategy), ("distributed", asked.strategy)):
        if strategy is Strategy.single and config.training.gpus_per_job > 1:
            yield (
                f"{key}.strategy=single with training.gpus_per_job={config.training.gpus_per_job}: it trains on "
                "one device. Use ddp, or fsdp for models that do not fit on one"
            )


def _tables(config: Config) -> Iterator[str]:
    if not any(algo.enabled for algo in config.algos.values()):
        yield (
            "no algorithm is enabled: name some, as in 'algos=[PITA,DPO]', or set algos.<NAME>.enabled=true for "
            f"one of {', '.join(config.algos)}"
        )
    for table, names in (("datasets", config.datasets), ("models", config.models), ("algos", config.algos)):
        if not names:
            group = TABLES[table].group
            yield f"{table} is empty: choose one by {group}=NAME; `python -m pipeline help {group}` lists them"
        plain = re.compile(_NAME.pattern + (SUFFIX if table == "algos" else ""))
        yield from (f"{table}.{brief(name)}: not a plain name" for name in names if not plain.fullmatch(name))
    for name, taken_by in (("reference", "the reference policy"), ("dataset", "the preparation of datasets")):
        if name in config.algos:
            yield f"algos.{name}: this name is taken by {taken_by}"
    for name, dataset in config.datasets.items():
        yield from _rewards(f"datasets.{name}", dataset)


def _joined(config: Config) -> Iterator[str]:
    for table in TABLES:
        for name, section in getattr(config, table).items():
            yield from _of_section(f"{table}.{name}", section, config)
    for name, dataset in config.datasets.items():
        yield from _splits(f"datasets.{name}", dataset, config)


def _of_section(key: str, section: object, config: Config) -> Iterator[str]:
    """What a section says of itself, and those inside it, in its lists and tables too, of themselves."""
    if isinstance(section, Settings):
        yield from _told_by(key, section, config)
    for below, entry in held(section, key):
        falls = config.training.schedule is Schedule.polynomial and below.endswith("learning_rate")
        end = schema.POLYNOMIAL_END
        if falls and key.startswith("algos.") and isinstance(entry, float) and entry <= end:
            yield (
                f"{below}={entry:g}: training.schedule=polynomial falls to {end:g} and must begin above that. Use "
                "linear, which falls to 0"
            )
        yield from _of_section(below, entry, config)


def _told_by(key: str, section: Settings, config: Config) -> Iterator[str]:
    """The messages of `problems`; who writes none may return None."""
    who = f"{key}: problems() of {type(section).__name__}"
    given: object = ask(who, lambda: section.problems(key, config))
    if isinstance(given, str) or not isinstance(given, Iterable | None):
        raise ConfigError(f"{who} gave {brief(given)}, but must yield messages{defined_at(section.problems)}")
    yield from ask(who, lambda: [str(message) for message in given or ()])


def _splits(key: str, dataset: DatasetConfig, config: Config) -> Iterator[str]:
    split = config.evaluation.split
    size = {"test": dataset.test_size, "validation": dataset.validation_size}.get(split)
    if size is not None and size < config.evaluation.num_prompts:
        yield (
            f"evaluation.num_prompts={config.evaluation.num_prompts}: {key}.{split}_size sets aside {size} "
            f"prompts at most; ask for fewer or raise it"
        )


def _rewards(key: str, dataset: DatasetConfig) -> Iterator[str]:
    grading = dataset.grading
    weights = dataset.rewards or {dataset.reward: 1.0}
    for name in weights:
        arguments = grading.options.get(name) or {}
        used = arguments.get("use", name) if isinstance(arguments, Mapping) else None
        if not isinstance(used, str):
            given = f"{key}.grading.options.{name}={brief(arguments)}"
            yield f"{given}: must be a table of the reward's arguments, as {{unit: true}}; `use` names one"
        elif used not in REWARD_NAMES and "." not in used:
            file = Path(f"{(module := used.partition(':')[0])}.py")
            own = f"{module}.FUNCTION for one in {file}" if file.is_file() else "the dotted path of a function"
            yield f"{key}: {unknown_name('reward', used, REWARD_NAMES)} Or write {own}."
    if weights and not any(weights.values()):
        yield f"{key}.rewards: every weight is 0, so nothing would be rewarded"
    for name in grading.options.keys() - weights.keys():
        yield f"{key}.grading.options: " + unknown_name("reward", str(name), weights)
    if grading.correct_by not in (None, schema.NOTHING, *weights):
        yield f"{key}.grading.correct_by: " + unknown_name(
            "reward", str(grading.correct_by), [*weights, schema.NOTHING]
        )
