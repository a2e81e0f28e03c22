"""Settings that a user gave and that change nothing in this run: told once, since a typing error looks the same.

Only what stands on the command line counts. A file, above all a profile, may well set what one run does not use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from pipeline.config import schema
from pipeline.config.schema import AlgoConfig, Backend, Config, Schedule, Settings, TextBackend, Tracker
from pipeline.config.tables import TABLES, point_of, settings_of
from pipeline.config.user_code import ask

GPU_PROFILES = ("a100_40gb", "a100_80gb", "h200")
"""Those that ship."""
_SHOWN = 80


@dataclass(frozen=True)
class _Given:
    """A setting, and what decides whether it has an effect.

    Attributes:
        config: The request.
        gpu: Whether it runs on GPUs.
        key: In parts.
        value: As typed.
        name: Of the algorithm that the key belongs to, or of one of its points; "" where it belongs to none.
    """

    config: Config
    gpu: bool
    key: tuple[str, ...]
    value: str
    name: str

    @property
    def enabled(self) -> dict[str, AlgoConfig]:
        """The algorithms of the run; of a front its last point."""
        return {point_of(name)[0]: algo for name, algo in self.config.algos.items() if algo.enabled}

    @property
    def online(self) -> list[str]:
        """Those that draw while they train."""
        return [name for name, algo in self.enabled.items() if algo.draws_to_train]

    @property
    def trains(self) -> bool:
        """Whether anything is trained, as far as that is known of code of the user's own."""
        models = any(model.is_trained for model in self.config.models.values())
        return models or self.own or any(algo.trains for algo in self.enabled.values())

    @property
    def guides(self) -> bool:
        """Whether anything is guided, likewise."""
        return self.own or any(algo.guides for algo in self.enabled.values())

    @property
    def own(self) -> bool:
        """Whether there are algorithms of the user's own."""
        return any(algo.class_path for algo in self.enabled.values())


def _left_out(run: _Given) -> str:
    """That an algorithm is not part of the run."""
    algo = run.config.algos.get(run.name)
    if run.key[2] == "enabled" or algo is None or algo.enabled:
        return ""
    return f"{run.key[1]} is not part of it; 'algos=[{','.join([*run.enabled, run.key[1]])}]' adds it"


def _stays(run: _Given) -> str:
    """That the rate of what draws while it trains has no end to fall to."""
    online = [name for name in run.online if getattr(run.enabled[name], "horizon", None) is None]
    if not online or not run.config.training.schedule.has_end:
        return ""
    return (
        f"{', '.join(online)} draws while it trains, and its rate stays after its warm-up; "
        f"algos.{online[0]}.horizon={run.config.rounds_of_training} lets it fall"
    )


def _draws_by_own(run: _Given) -> str:
    """That what draws while it trains does so by our own decoder, whose weights are those that are trained."""
    if not run.online or run.config.generation.backend is TextBackend.own:
        return ""
    return (
        f"{', '.join(run.online)} draws while it trains, by the decoder of this package; "
        f"algos.{run.online[0]}.sampling=round has it draw by this one"
    )


def _of_section(run: _Given) -> str:
    """What the section of a key says of it, or one inside of that: the innermost speaks first."""
    table, name, *path = run.key
    section: object = getattr(run.config, table).get(run.name or name)
    said = ""
    for place, part in enumerate(path):
        if isinstance(section, Settings):
            setting, inner = ".".join(path[place:]), section
            who = f"{'.'.join(run.key[: 2 + place])}: idle() of {type(section).__name__}"
            said = str(ask(who, lambda: inner.idle(setting)) or said)  # noqa: B023 - asked at once
        section = section.get(part) if isinstance(section, Mapping) else getattr(section, part, None)
    return said


class _Rule(NamedTuple):
    """When settings have no effect: patterns of their keys, whether or why, why, and what is said before that."""

    keys: str
    idle: Callable[[_Given], bool | str]
    reason: str = ""
    verdict: str = "has no effect in this run"


_NO_GPU = "it is about GPUs, and this run uses none"
_RULES = (
    _Rule("algos.*.*", _left_out),
    _Rule(
        "algos.*.*",
        lambda run: run.key[2] in settings_of(point_of(run.name)[1]),
        "each point of algos.<NAME>.front has a value of its own",
    ),
    _Rule(" ".join(f"{table}.*.*" for table in TABLES), _of_section),
    _Rule(
        "*.memory_mb training.deterministic generation.cuda_graphs system.clear_cache_interval "
        "execution.wait_for_devices",
        lambda run: not run.gpu,
        _NO_GPU,
    ),
    _Rule(
        "profile",
        lambda run: not run.gpu and run.value in GPU_PROFILES,
        "its values apply, but this run uses no GPU; profile=cpu is for machines without one",
        "is for a GPU",
    ),
    _Rule(
        "data_collection.samples_per_example",
        lambda run: not run.guides,
        "it is for value-guided algorithms, and this run has none; the others have algos.<NAME>.num_generations",
    ),
    _Rule(
        "evaluation.etas",
        lambda run: not run.guides,
        "it is for value-guided algorithms, and this run has none",
        "changes no algorithm of this run",  # the optimum is told at these strengths all the same
    ),
    _Rule("training.*", lambda run: not run.trains, "nothing is trained in this run"),
    _Rule(
        "training.warmup_steps",
        lambda run: run.config.training.schedule is Schedule.constant and not run.own,
        "training.schedule=constant has no warm-up; constant_with_warmup has one",
    ),
    _Rule("training.schedule", _stays, "", "is not for all of this run"),
    _Rule("generation.backend", _draws_by_own, "", "is not for all of this run"),
    _Rule(
        "training.strategy distributed.strategy distributed.fsdp_*",
        lambda run: schema.devices_per_training(run.config) == 1,
        "each training has one device here; training.gpus_per_job gives it more",
    ),
    _Rule(
        "distributed.num_gpus distributed.gpu_ids distributed.gpu_list",
        lambda run: not run.gpu and not run.config.distributed.enabled,
        _NO_GPU,
    ),
    _Rule(
        "tracking.*",
        lambda run: run.key[1] != "report_to" and not run.config.tracking.report_to,
        "no tracker is asked for; tracking.report_to=[tensorboard] does",
    ),
    _Rule(
        "tracking.mode tracking.entity",
        lambda run: Tracker.wandb not in run.config.tracking.report_to,
        "it is for wandb",
    ),
    _Rule(
        "execution.workers",
        lambda run: not run.config.system.use_parallel_execution or run.config.execution.backend is Backend.inline,
        "system.use_parallel_execution=false and execution.backend=inline run every job in one process",
    ),
    _Rule(
        "execution.ray.*",
        lambda run: run.config.execution.backend is not Backend.ray,
        "execution.backend is not ray",
    ),
)
"""The first that applies to a key speaks. A key of several points has an effect if it has one on any of them."""


def idle_settings(config: Config, overrides: Sequence[str], *, gpu: bool) -> tuple[str, ...]:
    """Name the settings of a command line that have no effect in a run, each with the reason.

    Args:
        config: The checked request.
        overrides: The settings; of one that is given twice the last counts, as Hydra takes it.
        gpu: Whether the run uses GPUs.
    """
    given = {}
    for override in overrides:
        key, equals, value = override.lstrip("+").partition("=")
        if equals and value != "null" and not key.startswith("~"):
            given[key] = value
    found = []
    for key, value in given.items():
        parts = tuple(key.split("."))
        points = [name for name in config.algos if parts[0] == "algos" and parts[1:2] == (point_of(name)[0],)]
        reasons = [_reason(_Given(config, gpu, parts, value, name)) for name in points or [""]]
        if all(reasons):
            found.append(f"{key}={value[:_SHOWN]} {reasons[0]}")
    return tuple(found)


def _reason(run: _Given) -> str:
    """What the first rule says by which a key has no effect; "" where none does."""
    for rule in _RULES:
        key = ".".join(run.key)
        if any(fnmatchcase(key, each) for each in rule.keys.split()) and (idle := rule.idle(run)):
            return f"{rule.verdict}: {idle if isinstance(idle, str) else rule.reason}"
    return ""
