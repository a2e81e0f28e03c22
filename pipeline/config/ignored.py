"""Settings that a user gave and that change nothing in this run: told once, since a typing error looks the same.

Only what stands on the command line counts. A file, above all a profile, may well set what one run does not use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pipeline.config.schema import (
    AUTO,
    AlgoConfig,
    Backend,
    Config,
    Schedule,
    Settings,
    TextBackend,
    Tracker,
    devices_per_training,
)
from pipeline.config.tables import TABLES, point_of, settings_of
from pipeline.config.user_code import ask


@dataclass(frozen=True, kw_only=True)
class GivenSetting:
    """What decides whether a setting has an effect.

    Attributes:
        config: The request.
        gpu: Whether it runs on GPUs.
        key: The key in question, in parts.
        value: What was given for it, as typed.
        name: Of the algorithm that the key belongs to, or of one of the points that it is run at; "" where it
            belongs to none.
        in_front: Whether the value is that of the points of a front.
    """

    config: Config
    gpu: bool
    key: tuple[str, ...]
    value: str
    name: str = ""
    in_front: bool = False

    @property
    def algo(self) -> AlgoConfig | None:
        """The algorithm that the key belongs to, at one of its points."""
        return self.config.algos.get(self.name)

    @property
    def enabled(self) -> list[AlgoConfig]:
        """The algorithms of the run."""
        return [algo for algo in self.config.algos.values() if algo.enabled]


@dataclass(frozen=True)
class Rule:
    """When settings have no effect.

    Attributes:
        patterns: Of their keys; a star stands for anything.
        idle: Whether one has none in this run; a text is the reason.
        reason: Why, where `idle` does not say it.
        verdict: What is said of one, before the reason.
    """

    patterns: tuple[str, ...]
    idle: Callable[[GivenSetting], bool | str]
    reason: str = ""
    verdict: str = "has no effect in this run"


def _left_out(run: GivenSetting) -> str:
    """That an algorithm is not part of the run."""
    chosen = dict.fromkeys(point_of(name)[0] for name, algo in run.config.algos.items() if algo.enabled)
    return f"{run.key[1]} is not part of it; 'algos=[{','.join([*chosen, run.key[1]])}]' adds it"


def _trains(run: GivenSetting) -> bool:
    return any(model.is_trained for model in run.config.models.values()) or any(
        algo.trains for algo in run.enabled
    )


def _guides(run: GivenSetting) -> bool:
    return any(algo.guides for algo in run.enabled)


def _stays(run: GivenSetting) -> str:
    """That the rate of what draws while it trains has no end to fall to."""
    online = [name for name, algo in _online(run).items() if getattr(algo, "horizon", None) is None]
    if not online or not run.config.training.schedule.has_end:
        return ""
    return (
        f"{', '.join(online)} draws while it trains, and its rate stays after its warm-up; "
        f"algos.{online[0]}.horizon={run.config.rounds_of_training} lets it fall"
    )


def _draws_by_own(run: GivenSetting) -> str:
    """That what draws while it trains does so by our own decoder, whose weights are those that are trained."""
    if not (online := [*_online(run)]) or run.config.generation.backend is TextBackend.own:
        return ""
    return (
        f"{', '.join(online)} draws while it trains, by the decoder of this package; "
        f"algos.{online[0]}.sampling=round has it draw by this one"
    )


def _online(run: GivenSetting) -> dict[str, AlgoConfig]:
    """The algorithms that draw while they train; of a front its last point."""
    found = {point_of(name)[0]: algo for name, algo in run.config.algos.items() if algo.enabled}
    return {name: algo for name, algo in found.items() if algo.draws_to_train}


def _own(run: GivenSetting) -> bool:
    return any(algo.class_path is not None for algo in run.enabled)


def _has_fronts(run: GivenSetting) -> bool:
    points = any(algo.enabled and point_of(name)[1] for name, algo in run.config.algos.items())
    return points or bool(run.config.evaluation.etas and (_guides(run) or _own(run)))


def _of_section(run: GivenSetting) -> str:
    """What the section of a key says of it, or one inside of that: the innermost speaks first."""
    table, name, *path = run.key
    section: object = getattr(run.config, table).get(run.name or name)
    said = ""
    for place in range(len(path)):
        if isinstance(section, Settings):
            setting, inner = ".".join(path[place:]), section
            who = f"{'.'.join(run.key[: 2 + place])}: idle() of {type(section).__name__}"
            said = str(ask(who, lambda: inner.idle(setting)) or said)  # noqa: B023 - asked at once
        section = _inside(section, path[place])
    return said


def _inside(section: object, name: str) -> object:
    """What settings or a table hold under a name."""
    return section.get(name) if isinstance(section, Mapping) else getattr(section, name, None)


GPU_PROFILES = ("a100_40gb", "a100_80gb", "h200")
"""Those that ship."""
_NO_GPU = "it is about GPUs, and this run uses none"
_SHOWN = 80
_ONE_DEVICE = "each training has one device here; training.gpus_per_job gives it more"
_ON_GPUS: tuple[str, ...] = (
    "algos.*.memory_mb",
    "training.memory_mb",
    "training.deterministic",
    "generation.memory_mb",
)
_ON_GPUS += ("generation.cuda_graphs", "system.clear_cache_interval", "execution.wait_for_devices")


def _alone(run: GivenSetting) -> bool:
    return devices_per_training(run.config) == 1


RULES = (
    Rule(
        ("algos.*.*",),
        lambda run: run.key[2] != "enabled" and run.algo is not None and not run.algo.enabled and _left_out(run),
    ),
    Rule(
        ("algos.*.*",),
        lambda run: not run.in_front and run.key[2] in settings_of(point_of(run.name)[1]),
        "each point of algos.<NAME>.front has a value of its own",
    ),
    Rule(tuple(f"{table}.*.*" for table in TABLES), _of_section),
    Rule(_ON_GPUS, lambda run: not run.gpu, _NO_GPU),
    Rule(
        ("profile",),
        lambda run: not run.gpu and run.value in GPU_PROFILES,
        "its values apply, but this run uses no GPU; profile=cpu is for machines without one",
        verdict="is for a GPU",
    ),
    Rule(
        ("data_collection.samples_per_example",),
        lambda run: not _guides(run) and not _own(run),
        "it is for value-guided algorithms, and this run has none; the others have algos.<NAME>.num_generations",
    ),
    Rule(
        ("evaluation.etas",),
        lambda run: not _guides(run) and not _own(run),
        "it is for value-guided algorithms, and this run has none",
        verdict="changes no algorithm of this run",  # the optimum is told at these strengths all the same
    ),
    Rule(
        ("evaluation.kl_limit",),
        lambda run: not run.config.evaluation.etas,
        "it is for the choice among evaluation.etas, and there are none",
    ),
    Rule(
        ("evaluation.matched_kl",),
        lambda run: not _has_fronts(run),
        "it is for fronts, and this run has none; algos.<NAME>.front or evaluation.etas makes one",
    ),
    Rule(("training.*",), lambda run: not _trains(run) and not _own(run), "nothing is trained in this run"),
    Rule(
        ("training.warmup_steps",),
        lambda run: run.config.training.schedule is Schedule.constant and not _own(run),
        "training.schedule=constant has no warm-up; constant_with_warmup has one",
    ),
    Rule(("training.schedule",), _stays, verdict="is not for all of this run"),
    Rule(("generation.backend",), _draws_by_own, verdict="is not for all of this run"),
    Rule(("training.strategy", "distributed.strategy", "distributed.fsdp_*"), _alone, _ONE_DEVICE),
    Rule(
        ("distributed.num_gpus", "distributed.gpu_ids", "distributed.gpu_list"),
        lambda run: not run.gpu and not run.config.distributed.enabled,
        _NO_GPU,
    ),
    Rule(
        ("distributed.master_port",),
        lambda run: _alone(run) and run.config.generation.gpus_per_job == 1,
        _ONE_DEVICE,
    ),
    Rule(
        ("distributed.gpu_memory_gib",),
        lambda run: run.config.generation.gpus_per_job != AUTO and not run.config.dry_run,
        "generation.gpus_per_job=auto reckons with it",
    ),
    Rule(
        ("distributed.gpu_name",), lambda run: not run.config.dry_run, "a dry run for GPUs that are not here does"
    ),
    Rule(
        ("tracking.*",),
        lambda run: run.key[1] != "report_to" and not run.config.tracking.report_to,
        "no tracker is asked for; tracking.report_to=[tensorboard] does",
    ),
    Rule(
        ("tracking.mode", "tracking.entity"),
        lambda run: Tracker.wandb not in run.config.tracking.report_to,
        "it is for wandb",
    ),
    Rule(
        ("execution.workers",),
        lambda run: not run.config.system.use_parallel_execution or run.config.execution.backend is Backend.inline,
        "system.use_parallel_execution=false and execution.backend=inline run every job in one process",
    ),
    Rule(
        ("execution.ray.*",),
        lambda run: run.config.execution.backend is not Backend.ray,
        "execution.backend is not ray",
    ),
)
"""The first that applies to a key speaks. A key of several points has an effect if it has one on any of them.

A front is not a key of its own here: each setting that it has values of is looked at."""


def idle_settings(config: Config, overrides: Sequence[str], *, gpu: bool) -> tuple[str, ...]:
    """What a user should know of settings on the command line that have no effect in this run.

    Args:
        config: The checked request.
        overrides: The settings of the command line.
        gpu: Whether the run uses GPUs.
    """
    found: dict[str, None] = {}
    for given, value in _given(overrides):
        key = tuple(given.split("."))
        swept = _settings_of_front(config, key)
        parts = swept or {key: f"{given}={value[:_SHOWN]}"}
        for one, said in parts.items():
            reasons = [
                _reason(
                    GivenSetting(config=config, gpu=gpu, key=one, value=value, name=name, in_front=bool(swept))
                )
                for name in _points(config, key) or [""]
            ]
            if all(reasons):
                found[f"{said} {reasons[0]}"] = None
    return tuple(found)


def _settings_of_front(config: Config, key: tuple[str, ...]) -> dict[tuple[str, ...], str]:
    """The keys of settings that a key of a front gives values of, with what to call them; none for other keys."""
    if key[0] != "algos" or key[2:3] != ("front",):
        return {}
    points = [settings_of(point_of(name)[1]) for name in _points(config, key)]
    given = dict.fromkeys(setting for settings in points for setting in settings if key[3:4] in ((), (setting,)))
    return {(*key[:2], setting): ".".join((*key[:3], setting)) for setting in given}


def _points(config: Config, key: tuple[str, ...]) -> list[str]:
    """Names of what the algorithm of a key is run as: its own, or those of the points of its front."""
    return [name for name in config.algos if key[0] == "algos" and key[1:2] in ((name,), (point_of(name)[0],))]


def _reason(run: GivenSetting) -> str:
    """What the first rule says by which a key has no effect; "" where none does."""
    key = ".".join(run.key)
    for rule in RULES:
        if any(fnmatchcase(key, each) for each in rule.patterns) and (idle := rule.idle(run)):
            return f"{rule.verdict}: {idle if isinstance(idle, str) else rule.reason}"
    return ""


def _given(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Keys and values; of one that is given twice the last, as Hydra takes it, and nothing that is taken back."""
    given: dict[str, str] = {}
    for override in overrides:
        key, equals, value = override.lstrip("+").partition("=")
        if equals and value != "null" and not key.startswith("~"):
            given[key] = value
    yield from given.items()
