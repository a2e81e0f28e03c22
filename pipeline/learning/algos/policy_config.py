"""Settings of methods that train the policy, that can draw online, or that use the model of another method."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from pipeline.config import schema
from pipeline.errors import known_names


class Anchor(Enum):
    """Anchor of the KL penalty: the policy that the trained one should stay close to."""

    initial = "initial"  # the reference in every round, or the policy of `start`
    previous = "previous"  # the policy at the start of the round


@dataclass(kw_only=True)
class LoraSettings(schema.Settings):
    """Low-rank adapters (LoRA, arXiv 2106.09685) instead of all weights; stored separately, merged when loaded."""

    rank: int = schema.number(0, at_least=0, at_most=16_384, hint=" (0 is no adapters)")
    """Rank of the adapters; 0 trains all weights."""
    alpha: int = schema.number(32, at_least=1, at_most=1_000_000)
    """Scale of the adapters is alpha / rank."""
    target_modules: list[str] | None = None
    """Names of the layers with adapters; null takes every linear layer except the output head, and in state-space
    models those where adapters have an effect."""

    def idle(self, setting: str) -> str:
        """Report all of them as unused without adapters."""
        return "" if setting == "rank" or self.rank else "there are no adapters; lora.rank sets their rank"


@dataclass(kw_only=True)
class PolicyAlgoConfig(schema.AlgoConfig):
    """Settings shared by all algorithms that train the policy."""

    keeps_logprobs: ClassVar[bool] = True

    num_generations: int = schema.number(4, at_least=1, at_most=100_000)
    """Completions drawn for each training prompt; TRL's name. `data_collection.samples_per_example` is for
    value-guided algorithms."""
    batch_size: int = schema.number(128, at_least=1, at_most=1_000_000)
    """Sequences per optimizer step; for DPO both completions of a pair count."""
    learning_rate: float = schema.number(2e-4, above=0, at_most=schema.LARGEST_RATE)
    epochs: int = schema.number(1, at_least=1, at_most=1_000_000)
    """Passes over the data of a round."""
    aggregate: bool = False
    """Train on the data of all rounds so far instead of this round only."""
    warm_start: bool = True
    """Continue from the policy of the previous round; false starts every round from the reference, or from
    `start`."""
    start: str | None = schema.hint(None, keyed="by the policy that it names")
    """Another method of the run that trains the policy, such as `SFT`: start from its last policy instead of the
    reference; with `reference=initial` that policy is also the anchor."""
    lora: LoraSettings = field(default_factory=LoraSettings)

    @property
    def wants_logprobs(self) -> bool:
        """Whether training needs log-probabilities of the policy that drew, and does not compute them anyway."""
        return self.keeps_logprobs

    @property
    def compares(self) -> bool:
        """Whether completions of a prompt are compared with each other."""
        return True

    def drawn(self, samples: int) -> float:
        """Return the completions drawn: whole groups."""
        return self.num_generations

    def trained(self, stage: str, samples: int, decided: float) -> float:
        """Return the completions trained on: whole groups."""
        return self.epochs * self.num_generations

    def problems(self, key: str, config: schema.Config) -> Iterator[str]:
        """Report too few completions to compare, and a `start` that does not exist."""
        if self.compares:
            yield from too_few(key, self.num_generations)
        yield from _of_start(key, self, config.algos)


@dataclass(kw_only=True)
class TaughtConfig(schema.AlgoConfig):
    """Settings shared by methods that use the value model of another method of the run."""

    teacher: str | None = schema.hint(None, keyed="by the value model that it names")
    """A method of the run that guides, such as `QSharp`: use the value model of its last round."""

    @property
    def guide(self) -> str | None:
        """The method that `teacher` names; None if it names another kind of teacher."""
        return self.teacher

    def problems(self, key: str, config: schema.Config) -> Iterator[str]:
        """Report a `teacher` that does not exist."""
        yield from super().problems(key, config)
        teachers = [name for name, each in config.algos.items() if each.enabled and each.guides]
        if self.enabled and self.teacher not in teachers:
            given = "null" if self.teacher is None else self.teacher
            yield f"{key}.teacher={given}: no method of the run that guides.{known_names(given, teachers)}"


class Sampling(Enum):
    """When a method draws its training completions."""

    online = "online"  # batch by batch, with the current policy
    round = "round"  # all at once per round, with the policy at its start


@dataclass(kw_only=True)
class OnlineConfig(PolicyAlgoConfig):
    """Settings shared by methods that can draw online."""

    sampling: Sampling = Sampling.round
    """With `online`, weights and optimizer carry over from round to round, and `epochs` counts passes over each
    batch, as TRL's num_iterations."""
    steps_per_generation: int = schema.number(1, at_least=1, at_most=100_000)
    """Optimizer steps on each batch drawn online: TRL's steps_per_generation in units of its
    gradient_accumulation_steps, or its generation_batch_size in batches."""
    dynamic_sampling: int = schema.number(1, at_least=1, at_most=1000, hint=" (1 draws no group anew)")
    """Maximum number of times a batch is drawn online: groups whose completions all score alike are replaced by
    further prompts (DAPO, arXiv 2503.14476), except in the last draw; `max_num_gen_batches` of verl."""
    horizon: int | None = schema.number(
        None, at_least=1, at_most=1_000_000, hint=", or null for a rate that stays"
    )
    """Rounds over which `training.schedule` decays the learning rate of an online training. With null the rate is
    constant after its warm-up, and more rounds can be added to a run."""

    @property
    def wants_logprobs(self) -> bool:
        """False if the current policy has drawn."""
        return super().wants_logprobs and not self.is_on_policy

    @property
    def draws_to_train(self) -> bool:
        """True with `online`."""
        return self.sampling is Sampling.online

    @property
    def is_on_policy(self) -> bool:
        """Whether every step trains on completions that the current policy has just drawn."""
        return self.draws_to_train and self.steps_per_generation == self.epochs == 1

    def problems(self, key: str, config: schema.Config) -> Iterator[str]:
        """Also report problems of drawing online: batches that split groups, more rounds than the schedule."""
        yield from super().problems(key, config)
        if not self.draws_to_train:
            return
        group, horizon, schedule = self.num_generations, self.horizon, config.training.schedule
        if self.batch_size % group:
            size = f"{key}.batch_size={self.batch_size}"
            yield f"{size}: must be a multiple of {key}.num_generations={group} (sampling=online)"
        if horizon is not None and horizon < (rounds := config.rounds_of_training):
            yield f"{key}.horizon={horizon}: must be null or at least rounds_of_training={rounds}"
        if horizon is not None and not schedule.has_end:
            yield f"{key}.horizon={horizon}: must be null, or training.schedule one that ends, not {schedule.name}"
        is_ddp = schema.spread(config)["strategy"] == schema.Strategy.ddp.name
        if schema.devices_per_training(config) > 1 and not is_ddp:
            yield f"{key}.sampling=online: needs training.strategy=ddp, as what draws must be whole on each device"
        if self.start and self.lora.rank and not stores_adapters(self, config.algos):
            yield f"{key}.lora.rank: needs algos.{self.start}.lora.rank too, where it draws online from that"

    def idle(self, setting: str) -> str:
        """Also report settings of the other way of drawing as unused."""
        if self.draws_to_train:
            if setting == "aggregate":
                return "with sampling=online each batch is trained on right after it is drawn"
        elif setting in ("steps_per_generation", "dynamic_sampling", "horizon"):
            return "it is of sampling=online"
        return super().idle(setting)


def start_of(settings: schema.AlgoConfig) -> str | None:
    """Return the method whose policy a method starts from; None for the reference."""
    return settings.start if isinstance(settings, PolicyAlgoConfig) else None


def taken_from(settings: schema.AlgoConfig) -> dict[str, str]:
    """Return the methods whose last models a method uses, by the setting that names them."""
    teacher = settings.guide if isinstance(settings, TaughtConfig) else None
    return {setting: name for setting, name in (("start", start_of(settings)), ("teacher", teacher)) if name}


def starts_of(settings: schema.AlgoConfig, algos: Mapping[str, schema.AlgoConfig]) -> list[str]:
    """Return the methods that a method starts from, the nearest first; each once, even in a cycle."""
    found: list[str] = []
    while (start := start_of(settings)) in algos and start is not None and start not in found:
        found.append(start)
        settings = algos[start]
    return found


def stores_adapters(settings: schema.AlgoConfig, algos: Mapping[str, schema.AlgoConfig]) -> bool:
    """Return whether only adapters are stored: the method trains adapters, as do all methods it starts from."""
    every = [settings, *(algos[name] for name in starts_of(settings, algos))]
    return all(isinstance(each, PolicyAlgoConfig) and each.lora.rank for each in every)


def _of_start(key: str, settings: PolicyAlgoConfig, algos: Mapping[str, schema.AlgoConfig]) -> Iterator[str]:
    start, own = settings.start, key.removeprefix("algos.")
    if start is None:
        return
    others = [name for name, each in algos.items() if isinstance(each, PolicyAlgoConfig) and name != own]
    if start not in algos:
        yield f"{key}.start={start}: the run has no such method.{known_names(start, others)}"
    elif own in (start, *starts_of(settings, algos)):
        yield f"{key}.start={start}: {own} would begin with what comes out of itself. Leave out one `start`"
    elif start not in others:
        yield f"{key}.start={start}: {start} trains no policy to begin with.{known_names(start, others)}"


def too_few(key: str, num_generations: int) -> Iterator[str]:
    """Report too few completions for a comparison."""
    if num_generations < 2:
        yield f"{key}.num_generations={num_generations}: must be at least 2, to be compared with each other"
