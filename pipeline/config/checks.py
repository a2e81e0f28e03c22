"""Check what types and ranges cannot express: fields that must fit each other, and settings without effect.

All such faults are reported at once. Rules within one settings class are its methods `problems` and `idle`; this
module has the rules of the run and of the shared sections.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipeline.config import schema
from pipeline.config.plain import brief, held, refuse_all, value_problems
from pipeline.config.schema import Config, DatasetConfig, Optimizer, Schedule, Settings, Strategy
from pipeline.config.tables import (
    ALGORITHMS,
    CHECKPOINT,
    MEAN,
    REWARD_NAMES,
    SUFFIX,
    TABLES,
    as_typed,
    choices_of,
    point_of,
    settings_of,
)
from pipeline.config.user_code import ask
from pipeline.errors import PipelineError, unknown_name

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ROWS = ("reference", "greedy", "optimum", "dataset", MEAN)
"""Names of rows and jobs that are no algorithm."""


def check_config(config: Config) -> None:
    """Refuse a request that cannot work.

    Raises:
        ConfigError: The message lists every broken rule.
    """
    refuse_all(config_problems(config))


def config_problems(config: Config) -> list[str]:
    """Return the problems of a request, each once."""
    return list(dict.fromkeys(_problems(config)))


def check_together(*checks: Callable[[], object]) -> None:
    """Run independent checks, and report the faults of all of them at once.

    Raises:
        PipelineError: The error of the only failed check.
        ConfigError: The messages of several failed checks.
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
    used = config.enabled
    singly = [as_typed(said, used, config.evaluation.also) for said in value_problems(replace(config, algos=used))]
    yield from singly
    yield from _experiment(config)
    yield from _ranks(config)
    yield from _tables(config)
    # Rules between numbers are checked only if each number is valid by itself.
    if not singly:
        beats = config.execution
        if beats.heartbeat_timeout_s <= beats.heartbeat_s:
            setting = f"execution.heartbeat_timeout_s={beats.heartbeat_timeout_s}"
            yield f"{setting}: must be longer than execution.heartbeat_s={beats.heartbeat_s}"
        yield from _repeats(config)
        yield from _joined(replace(config, algos=used))


def _experiment(config: Config) -> Iterator[str]:
    name = config.experiment.name
    if not _NAME.fullmatch(name):
        allowed = "up to 100 letters, digits, '.', '_' or '-', a letter or digit first"
        yield f"experiment.name={brief(name)} is not a plain name, as it becomes a folder: {allowed}"
    if not config.experiment.seeds:
        yield "experiment.seeds is empty: give at least one, for example experiment.seeds=[0]"
    if config.experiment.budget and config.execution.priority is not None:
        yield "experiment.budget orders the jobs itself: leave execution.priority out"
    if "" in config.generation.stop:
        yield "generation.stop holds an empty text, which would end every completion at once: leave it out"


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
        yield f"algos.{over[0]}.front and evaluation.etas: both set the strength of guidance; leave one out"


def _ranks(config: Config) -> Iterator[str]:
    ranks, several, wide = config.distributed, schema.devices_per_training(config), config.generation.gpus_per_job
    if not config.system.use_parallel_execution and (max(several, wide) > 1):
        asks = f"a training asks for {several} devices, generation.gpus_per_job for {wide}"
        yield f"system.use_parallel_execution=false runs everything in one process, and {asks}: ask for 1"
    optimizers = {"training": config.training.optimizer}
    optimizers |= {
        f"models.{name}": getattr(each, "optimizer", Optimizer.adamw) for name, each in config.models.items()
    }
    for key, optimizer in optimizers.items() if several > 1 else ():
        if optimizer is not Optimizer.adamw and schema.spread(config)["strategy"] != Strategy.ddp.name:
            why = f"a training has {several} devices, and fsdp cannot spread what this one remembers"
            yield f"{key}.optimizer={optimizer.name}: {why}. Use training.strategy=ddp, or adamw"
    if ranks.enabled and ranks.num_gpus is None and ranks.ids is None and config.training.gpus_per_job == 1:
        which = "training.gpus_per_job, distributed.num_gpus or distributed.gpu_ids"
        yield f"distributed.enabled=true has one training use several GPUs: say how many with {which}"
    if ranks.gpu_ids is not None and ranks.gpu_list is not None:
        both = f"distributed.gpu_ids={ranks.gpu_ids} and distributed.gpu_list={ranks.gpu_list}"
        yield f"{both} are two names of one setting; give one of them, and null for the other"
    for key, strategy in (("training", config.training.strategy), ("distributed", ranks.strategy)):
        if strategy is Strategy.single and config.training.gpus_per_job > 1:
            setting = f"training.gpus_per_job={config.training.gpus_per_job}"
            yield f"{key}.strategy=single with {setting}: it trains on one device. Use ddp or fsdp"


def _tables(config: Config) -> Iterator[str]:
    if not (config.enabled or config.evaluation.on):
        yield f"no algorithm is enabled: name some, as in 'algos=[PITA,DPO]'. Known: {', '.join(config.algos)}"
    for table, names in (("datasets", config.datasets), ("models", config.models), ("algos", config.algos)):
        if not names and not (table == "algos" and config.evaluation.on):
            group = TABLES[table].group
            yield f"{table} is empty: choose one by {group}=NAME; `python -m pipeline help {group}` lists them"
        plain = re.compile(_NAME.pattern + (SUFFIX if table == "algos" else ""))
        own = set(names).difference(config.evaluation.also if table == "algos" else ())  # those are checked below
        yield from (
            f"{table}.{brief(name)}: not a plain name"
            for name in names
            if name in own and not plain.fullmatch(name)
        )
    for name, taken_by in (("reference", "the reference policy"), ("dataset", "the preparation of datasets")):
        if name in config.algos and name not in config.evaluation.also:
            yield f"algos.{name}: this name is taken by {taken_by}"
    for name, dataset in config.datasets.items():
        yield from _rewards(f"datasets.{name}", dataset)
    yield from _test_sets(config)


def checkpoint_problems(given: str, name: str) -> Iterator[str]:
    """Yield problems of the name of a checkpoint.

    Args:
        given: Text that was typed, for the message.
        name: The name.
    """
    if name in (*_ROWS, *ALGORITHMS) or not _NAME.fullmatch(name):
        taken = f"not {', '.join(_ROWS)}, nor that of an algorithm"
        yield f"{given}: a checkpoint needs a name of its own of letters, digits, '.', '_' and '-', {taken}"


def _test_sets(config: Config) -> Iterator[str]:
    """Yield problems of `evaluation.on`, and of datasets that are there for it alone."""
    grown = config.evaluation.grown_from
    sizes = [*grown, [config.evaluation.num_prompts, config.evaluation.num_samples]]
    if any(len(size) != 2 or min(size) < 1 for size in grown):
        yield f"evaluation.grown_from={brief(grown)}: must be a list of prompts and completions, as [[500, 2]]"
    elif any(new < old for first, second in pairwise(sizes) for old, new in zip(first, second, strict=True)):
        now = "evaluation.num_prompts and num_samples"
        yield f"evaluation.grown_from={brief(grown)}: {now} can only grow, and are {sizes[-1]}"
    for name in config.evaluation.also:
        yield from checkpoint_problems(f"evaluation.also.{name}", name)
        if name not in ALGORITHMS and getattr(config.algos.get(name), "class_path", None) != CHECKPOINT:
            yield f"evaluation.also.{name}: this name is taken by an algorithm; give the checkpoint another one"
    for name in config.evaluation.on:
        if name not in config.datasets:
            own = f"One of your own is a section: datasets.{name}.kind=jsonl datasets.{name}.path=FILE"
            names = {*config.datasets, *choices_of(TABLES["datasets"].group)}
            yield f"evaluation.on: {unknown_name('dataset', name, names)} {own}"
    if not config.evaluation.on_own and not config.trained_on.keys() <= {*config.evaluation.on}:
        if not config.evaluation.on:
            yield "evaluation.on_own=false: no test set is left; name one, as 'evaluation.on=[math500]'"
        needed = {"execution.keep=best": config.execution.keep is schema.Keep.best}
        needed["evaluation.etas"] = bool(config.evaluation.etas)
        for given in (key for key, is_needed in needed.items() if is_needed):
            yield f"{given} chooses by the dataset that is trained on: set evaluation.on_own=true"
    if MEAN in config.evaluation.on:
        yield f"evaluation.on: {MEAN} is the mean of all test sets; give this one another name"
    if twice := [name for name in config.evaluation.on if config.evaluation.on.count(name) > 1]:
        yield f"evaluation.on={brief(config.evaluation.on)} names {twice[0]} twice"
    only = [name for name in config.datasets if name not in config.trained_on]
    for name in only:
        if name not in config.evaluation.on:
            yield f"datasets.{name}.trained_on=false: name it in evaluation.on, or leave it out"
    if only and len(only) == len(config.datasets):
        yield f"no dataset is left to train on: datasets.{only[0]}.trained_on=false. Choose one with dataset=NAME"


def _continued(config: Config) -> Iterator[str]:
    """Yield problems of algorithms that go on from a round of another one, and of looks at fewer prompts."""
    enabled = config.enabled

    def class_of(name: str) -> str:
        return (enabled[name].class_path or ALGORITHMS.get(point_of(name)[0], name)).replace(":", ".")

    for name, algo in enabled.items():
        if algo.continues is None:
            continue
        (source, last), key = schema.continued_from(algo), f"algos.{name}.continues={algo.continues}"
        seen, before = {name}, source
        while before in enabled and before not in seen:
            seen.add(before)
            before = schema.continued_from(enabled[before])[0]
        if source is None or not 1 <= last < config.rounds_of_training:
            yield f"{key}: must be ALGORITHM@ROUND, with a round before the last, {config.rounds_of_training}"
        elif source not in enabled:
            yield f"{key}: {unknown_name('algorithm of the run', source, enabled)}"
        elif before in seen:
            yield f"{key}: it would begin with what comes out of itself"
        elif class_of(name) != class_of(source):
            yield f"{key}: {source} is a {class_of(source)} and {name} a {class_of(name)}; both must be the same"
    if config.experiment.looks and config.evaluation.grown_from:
        fewer = "chains were evaluated on fewer prompts (experiment.looks, as a race sets it)"
        yield f"evaluation.grown_from: an evaluation cannot grow in which {fewer}. Set one of them alone"


def _joined(config: Config) -> Iterator[str]:
    yield from _continued(config)
    yield from _of_section("experiment.race", config.experiment.race, config)
    for table in TABLES:
        for name, section in getattr(config, table).items():
            yield from _of_section(f"{table}.{name}", section, config)
    for name, dataset in config.trained_on.items():
        yield from _splits(f"datasets.{name}", dataset, config)


def _of_section(key: str, section: object, config: Config) -> Iterator[str]:
    """Yield the problems that a section reports, and those of sections inside it, also in lists and tables."""
    if isinstance(section, Settings):
        yield from _told_by(key, section, config)
    for below, entry in held(section, key):
        yield from _of_section(below, entry, config)


def _told_by(key: str, section: Settings, config: Config) -> Iterator[str]:
    """Yield the messages of `problems`; a user's method may return None, or a message."""

    def messages() -> list[str]:
        told: Any = section.problems(key, config) or ()
        return [told] if isinstance(told, str) else [str(message) for message in told]

    yield from ask(f"{key}: problems() of {type(section).__name__}", messages)


def _splits(key: str, dataset: DatasetConfig, config: Config) -> Iterator[str]:
    split = config.evaluation.split
    size = {"test": dataset.test_size, "validation": dataset.validation_size}.get(split)
    if size is not None and size < config.evaluation.num_prompts:
        problem = f"{key}.{split}_size sets aside {size} prompts at most; ask for fewer or raise it"
        yield f"evaluation.num_prompts={config.evaluation.num_prompts}: {problem}"


def _rewards(key: str, dataset: DatasetConfig) -> Iterator[str]:
    grading, weights = dataset.grading, dataset.reward_weights
    for name in weights:
        arguments = grading.options.get(name) or {}
        used = arguments.get("use", name) if isinstance(arguments, Mapping) else None
        if not isinstance(used, str):
            setting = f"{key}.grading.options.{name}={brief(arguments)}"
            yield f"{setting}: must be a table of the reward's arguments, as {{unit: true}}; `use` names one"
        elif used not in REWARD_NAMES and "." not in used:
            file = Path(f"{(module := used.partition(':')[0])}.py")
            own = f"{module}.FUNCTION for one in {file}" if file.is_file() else "the dotted path of a function"
            yield f"{key}: {unknown_name('reward', used, REWARD_NAMES)} Or write {own}."
    if weights and not any(weights.values()):
        yield f"{key}.rewards: every weight is 0, so nothing would be rewarded"
    for name in grading.options.keys() - weights.keys():
        yield f"{key}.grading.options: " + unknown_name("reward", str(name), weights)
    if grading.correct_by not in (None, schema.NOTHING, *weights):
        names = [*weights, schema.NOTHING]
        yield f"{key}.grading.correct_by: " + unknown_name("reward", str(grading.correct_by), names)


# -- settings that change nothing --------------------------------------------------------------------------------
# Settings without effect: reported, since a typing error looks the same. Only the command line is checked: a file,
# above all a profile, may contain settings that a run does not use.


_SHOWN = 80


def idle_settings(config: Config, overrides: Sequence[str], *, gpu: bool) -> tuple[str, ...]:
    """Return the settings of a command line that have no effect in a run, each with the reason.

    Args:
        config: The checked request.
        overrides: The settings; the last one counts if a key is repeated, as in Hydra.
        gpu: Whether the run uses GPUs.
    """
    typed = {}
    for override in overrides:
        key, equals, value = override.lstrip("+").partition("=")
        if equals and value != "null" and not key.startswith("~"):
            typed[key] = value
    reasons = {key: _why_idle(key, config, gpu=gpu) for key in typed}
    return tuple(f"{key}={typed[key][:_SHOWN]} has no effect {why}" for key, why in reasons.items() if why)


def _why_idle(key: str, config: Config, *, gpu: bool) -> str:
    """Say why a key has no effect; "" if it has one, for a front on any of its points."""
    table, _, rest = key.partition(".")
    name, _, setting = rest.partition(".")
    if table in TABLES and setting:
        points = [point for point in config.algos if table == "algos" and point_of(point)[0] == name]
        reasons = [_why_idle_in(table, point, setting, config) for point in points or [name]]
        if all(reasons):
            return f"in this run: {reasons[0]}"
    for keys, is_idle, why in _idle_rules(config, gpu=gpu):
        if is_idle and any(fnmatchcase(key, pattern) for pattern in keys.split()):
            return why if why.startswith("on ") else f"in this run: {why}"
    return ""


def _why_idle_in(table: str, name: str, setting: str, config: Config) -> str:
    """Say why a key has no effect according to its section or one inside it; the innermost is asked first."""
    algo, point = point_of(name)
    section: object = getattr(config, table).get(name)
    if table == "algos" and section is not None and setting != "enabled" and not config.algos[name].enabled:
        chosen = map(point_of, config.enabled)
        used = dict.fromkeys([*(key for key, _ in chosen if key not in config.evaluation.also), algo])
        return f"{algo} is not part of it; 'algos=[{','.join(used)}]' adds it"
    if table == "algos" and setting.partition(".")[0] in settings_of(point):
        return "each point of algos.<NAME>.front has a value of its own"
    reason, path = "", setting.split(".")
    for index, part in enumerate(path):
        if isinstance(section, Settings):
            who = ".".join([table, name, *path[:index]])
            idle = partial(section.idle, ".".join(path[index:]))
            reason = str(ask(f"{who}: idle() of {type(section).__name__}", idle) or reason)
        section = section.get(part) if isinstance(section, Mapping) else getattr(section, part, None)
    return reason


def _idle_rules(config: Config, *, gpu: bool) -> Iterator[tuple[str, bool, str]]:
    """Yield patterns of keys, whether they have no effect in this run, and why; the first match counts."""
    used = {point_of(name)[0]: algo for name, algo in config.enabled.items()}
    # What classes of the user's own read is unknown.
    own = any(algo.class_path not in (None, CHECKPOINT) for algo in used.values())
    guides = own or any(algo.guides for algo in used.values())
    trains = own or any(each.is_trained for each in config.models.values()) or any(a.trains for a in used.values())
    tracking, execution, schedule = config.tracking, config.execution, config.training.schedule
    drawing = [name for name, algo in used.items() if algo.draws_to_train]
    steady = [name for name in drawing if getattr(used[name], "horizon", None) is None]
    no_gpu = "it is about GPUs, and this run uses none"
    of_gpus = "*.memory_mb training.deterministic generation.cuda_graphs system.clear_cache_interval"
    yield f"{of_gpus} execution.wait_for_devices", not gpu, no_gpu
    yield "distributed.num_gpus distributed.gpu_*", not (gpu or config.distributed.enabled), no_gpu
    why = "it is for value-guided algorithms, and this run has none"
    yield "data_collection.samples_per_example", not guides, why
    yield "training.*", not trains, "nothing is trained"
    yield "training.warmup_steps", schedule is Schedule.constant and not own, "training.schedule=constant has none"
    if steady and schedule.has_end:
        why = f"algos.{steady[0]}.horizon={config.rounds_of_training} lets its rate fall"
        yield "training.schedule", True, f"on {', '.join(steady)}, which draws while it trains; {why}"
    own_decoder = config.generation.backend is schema.TextBackend.own
    yield "algos.*.vllm_*", own_decoder, "it is of generation.backend=vllm"
    single = schema.devices_per_training(config) == 1
    why = "each training has one device here; training.gpus_per_job gives it more"
    yield "training.strategy distributed.strategy distributed.fsdp_*", single, why
    why = "no tracker is asked for; tracking.report_to=[tensorboard] does"
    yield "tracking.[!r]*", not tracking.report_to, why
    yield "tracking.mode tracking.entity", schema.Tracker.wandb not in tracking.report_to, "it is for wandb"
    inline = not config.system.use_parallel_execution or execution.backend is schema.Backend.inline
    yield "execution.workers", inline, "all jobs run in one process"
    yield "execution.ray.*", execution.backend is not schema.Backend.ray, "execution.backend is not ray"
