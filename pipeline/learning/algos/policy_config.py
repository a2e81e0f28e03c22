"""Settings of methods that train the policy: what all of them have, and what those have that can draw online."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from pipeline.config import schema
from pipeline.errors import known_names


class Anchor(Enum):
    """The policy that a trained one is held close to."""

    initial = "initial"  # in every round the reference, or the policy of `start`
    previous = "previous"  # what the round started from


@dataclass(kw_only=True)
class LoraSettings(schema.Settings):
    """Low-rank adapters instead of whole weights (arXiv 2106.09685); stored by themselves, merged when loaded."""

    rank: int = schema.number(0, at_least=0, at_most=16_384, hint=" (0 is no adapters)")
    """Of the adapters; 0 trains the weights themselves."""
    alpha: int = schema.number(32, at_least=1, at_most=1_000_000)
    """The adapters' share is scaled by alpha / rank."""
    target_modules: list[str] | None = None
    """Names of the layers that get adapters; null takes every linear layer but the output head, and of
    state spaces those that adapters have an effect on."""

    def idle(self, setting: str) -> str:
        """All of them, where there are no adapters."""
        return "" if setting == "rank" or self.rank else "there are no adapters; lora.rank sets their rank"


@dataclass(kw_only=True)
class PolicyAlgoConfig(schema.AlgoConfig):
    """What algorithms that train the policy share."""

    keeps_logprobs: ClassVar[bool] = True

    num_generations: int = schema.number(4, at_least=1, at_most=100_000)
    """Completions drawn for each training prompt; TRL's name. `data_collection.samples_per_example` is for
    value-guided algorithms."""
    batch_size: int = schema.number(128, at_least=1, at_most=1_000_000)
    """Sequences per optimizer step, for DPO both completions of a pair."""
    learning_rate: float = schema.number(2e-4, above=0, at_most=schema.LARGEST_RATE)
    epochs: int = schema.number(1, at_least=1, at_most=1_000_000)
    """Passes over the data of a round."""
    aggregate: bool = False
    """Train on the data of all rounds so far rather than of this round alone."""
    warm_start: bool = True
    """Continue from the policy of the previous round; false starts from the reference again, or from `start`."""
    start: str | None = schema.hint(None, keyed="by the policy that it names")
    """Another method of the run that trains the policy, as `SFT`: begin with its last policy in place of the
    reference, and be held close to that by `reference=initial`."""
    lora: LoraSettings = field(default_factory=LoraSettings)

    @property
    def wants_logprobs(self) -> bool:
        """Whether training needs log-probabilities of the policy that drew, and does not compute them anyway."""
        return self.keeps_logprobs

    @property
    def compares(self) -> bool:
        """Whether the completions of a prompt are compared with each other."""
        return True

    def drawn(self, samples: int) -> float:
        """Whole groups."""
        return self.num_generations

    def trained(self, stage: str, samples: int, decided: float) -> float:
        """Whole groups."""
        return self.epochs * self.num_generations

    def problems(self, key: str, config: schema.Config) -> Iterator[str]:
        """Too few completions to compare, and nothing to start from."""
        if self.compares:
            yield from too_few(key, self.num_generations)
        yield from _of_start(key, self, config.algos)


class Sampling(Enum):
    """When a method draws the completions that it trains on."""

    online = "online"  # a batch at a time, by the policy as it has become
    round = "round"  # all of a round, by the policy that the round begins with


@dataclass(kw_only=True)
class OnlineConfig(PolicyAlgoConfig):
    """What methods share that can draw online."""

    sampling: Sampling = Sampling.round
    """With `online` weights and optimizer go on from round to round, and `epochs` counts passes over each batch,
    as TRL's num_iterations."""
    steps_per_generation: int = schema.number(1, at_least=1, at_most=100_000)
    """Optimizer steps on each batch that is drawn online: TRL's steps_per_generation in units of its
    gradient_accumulation_steps, or its generation_batch_size in batches."""
    dynamic_sampling: int = schema.number(1, at_least=1, at_most=1000, hint=" (1 draws no group anew)")
    """How many times a batch that is drawn online may be drawn: groups that score alike make way for further
    prompts (DAPO, arXiv 2503.14476), but for those of the last time; `max_num_gen_batches` of verl."""
    horizon: int | None = schema.number(
        None, at_least=1, at_most=1_000_000, hint=", or null for a rate that stays"
    )
    """Rounds over which `training.schedule` takes the rate of an online training down; with null the rate stays,
    after its warm-up, and more rounds can be added to a run."""

    @property
    def wants_logprobs(self) -> bool:
        """Not where the policy as it is has drawn."""
        return super().wants_logprobs and not self.is_on_policy

    @property
    def draws_to_train(self) -> bool:
        """With `online`."""
        return self.sampling is Sampling.online

    @property
    def is_on_policy(self) -> bool:
        """Whether every step is on completions that the policy has just drawn."""
        return self.draws_to_train and self.steps_per_generation == self.epochs == 1

    def problems(self, key: str, config: schema.Config) -> Iterator[str]:
        """Also of drawing online: batches of no whole groups, more rounds than the rate lasts."""
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
        """Also what is of drawing in the other way."""
        if self.draws_to_train:
            if setting == "aggregate":
                return "with sampling=online each batch is trained on right after it is drawn"
        elif setting in ("steps_per_generation", "dynamic_sampling", "horizon"):
            return "it is of sampling=online"
        return super().idle(setting)


def start_of(settings: schema.AlgoConfig) -> str | None:
    """The method whose policy one begins with; None for the reference."""
    return settings.start if isinstance(settings, PolicyAlgoConfig) else None


def starts_of(settings: schema.AlgoConfig, algos: Mapping[str, schema.AlgoConfig]) -> list[str]:
    """The methods that one begins with, the nearest first; each once, also where they go round in a circle."""
    found: list[str] = []
    while (start := start_of(settings)) in algos and start is not None and start not in found:
        found.append(start)
        settings = algos[start]
    return found


def stores_adapters(settings: schema.AlgoConfig, algos: Mapping[str, schema.AlgoConfig]) -> bool:
    """Whether adapters alone are stored of what is trained: it has them, and so has all that it begins with."""
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
    """Completions that are compared with each other must be there."""
    if num_generations < 2:
        yield f"{key}.num_generations={num_generations}: must be at least 2, to be compared with each other"
