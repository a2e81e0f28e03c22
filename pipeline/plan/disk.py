"""How much room the outputs of a plan take on the disk of the store, by arithmetic alone, before anything runs.

    a policy         its weights in float32, or the adapters of all rounds up to it, with its tokenizer
    a value model    the weights of its backbone and its head in float32, likewise; a reward model is one
    completions      token ids by the longest, or a line of text each; how many of them teach anything is a guess
    a checkpoint     weights that are trained in float32, and what the optimizer remembers of each

Weights are nearly all of it. What a stage saves is declared with it (`Stage.saves`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from pipeline.config.bases import AlgoConfig
from pipeline.config.schema import Config, Keep, Optimizer
from pipeline.learning.algos.base import Stage
from pipeline.learning.algos.policy_config import starts_of, stores_adapters
from pipeline.learning.choices import HeadType
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.memory.fit import Precision, bytes_per_parameter
from pipeline.learning.models.families import is_adapters
from pipeline.outputs.formats import MAX_STEPS
from pipeline.plan.chains import PREPARATION, REFERENCE, chains
from pipeline.plan.estimates import Scale, scale_of
from pipeline.plan.graph import Job, Plan
from pipeline.plan.model_size import ModelSize, reference_size, value_size
from pipeline.plan.models import is_gguf

_MANIFEST = 500
"""Bytes of the manifest of an output."""
_NOTED = 600
"""Of what is beside completions to train on: what they took, headers, a longer manifest."""
_MODEL = 3_000
"""Of what is beside the weights of a model and its tokenizer: configuration, settings, a longer manifest."""
_ADAPTERS = 2_000
"""Of what is beside the weights of adapters: their settings, longer names of tensors."""
_CURVE, _LOSS = 150, 20
"""Of a step of a training: a line of its curve, and its loss among all losses."""
_SEQUENCE = 20
"""Of a sequence besides its tokens of 4 bytes each: length, begin, label, prompt."""
_DRAWN, _GROUP, _SECOND = 9, 16, 300
"""Of one that no reward has seen: the end of its text, whether it was cut off; of its group; of a second file."""
_LINE = 206
"""Of an evaluated completion, besides its text and that of its prompt."""
_LETTERS = 4
"""Of a token of text; symbols of a vocabulary that is made for a dataset have one."""
_MEASURES = 8 * 21
"""Of a prompt in what metrics keep of it."""
_METRICS = 5_000
_POINTER = 300


def _saved(optimizer: Optimizer) -> int:
    """Bytes of a weight in a checkpoint: itself and what its optimizer remembers of it."""
    weight, _, state = bytes_per_parameter(Precision.float32, optimizer)
    return weight + state


@dataclass(frozen=True)
class DiskUse:
    """What a job takes of the disk.

    Attributes:
        stored: Bytes of its output.
        meanwhile: Bytes of what is on the disk while it runs, and not afterwards: checkpoints.
        least: Bytes of its output that do not depend on what is drawn: models that it saves.
        guessed: Whether its models were guessed at, from their names.
    """

    stored: int
    meanwhile: int = 0
    least: int = 0
    guessed: bool = False


@dataclass(frozen=True, kw_only=True)
class DiskNeed:
    """What the jobs that are to run take of the disk.

    Attributes:
        stages: Algorithm and stage -> bytes of their outputs, in plan order.
        peak: Bytes at most, checkpoints included.
        stays: Bytes that are left at the end, when `execution.keep` has removed what it is to.
        least: Bytes that are taken whatever is drawn, of models whose size is known: what a run may be refused by.
        checkpoints: Bytes of these among the peak.
        guessed: Models whose sizes are guesses.
        unknown: What nothing is known of, as ``models.hf``, and so is not in the figures.
    """

    stages: Mapping[tuple[str, str], int] = field(default_factory=dict)
    peak: int = 0
    stays: int = 0
    least: int = 0
    checkpoints: int = 0
    guessed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Bytes of all outputs."""
        return sum(self.stages.values())


def disk_need(plan: Plan, config: Config, missing: Collection[str], workers: int) -> DiskNeed:
    """Reckon what the jobs of a plan take that are to run.

    Args:
        plan: The plan.
        config: Its request.
        missing: Ids of the jobs that must run.
        workers: How many there are, so that as many trainings may have checkpoints at once.
    """
    rooms = _Rooms(config)
    rooms.reckon_with(plan)
    stages: dict[tuple[str, str], int] = {}
    waiting: list[int] = []
    weights = _Weights(config.execution.keep)
    least = 0
    guessed: dict[str, None] = {}
    for job_id in missing:
        job = plan.jobs[job_id]
        room = rooms.of(job)
        place = (job.algo, job.stage)
        stages[place] = stages.get(place, 0) + room.stored
        # A checkpoint is removed when its output is there.
        waiting += [max(0, room.meanwhile - room.stored)] if room.meanwhile else []
        if job.weights:
            weights.add(job, room)
        elif not room.guessed:
            least += room.least
        if room.guessed:
            guessed[f"models.{job.model}"] = None
    at_once = max(1, workers // max((plan.jobs[job_id].devices for job_id in missing), default=1))
    checkpoints = sum(sorted(waiting)[-at_once:])
    rest = sum(stages.values()) - weights.made
    return DiskNeed(
        stages=stages,
        peak=rest + weights.at_once(at_once) + checkpoints,
        stays=rest + weights.stays,
        least=least + weights.least,
        checkpoints=checkpoints,
        guessed=tuple(guessed),
        unknown=tuple(rooms.unknown),
    )


class _Weights:
    """The trained weights of a plan: how many bytes of them are there at once, at the end, and in any case."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._jobs: list[int] = []
        self._known: list[int] = []
        self._rounds: dict[str, dict[int, int]] = {}
        self._sure: dict[str, dict[int, int]] = {}

    def add(self, job: Job, room: DiskUse) -> None:
        """Count the models of a job."""
        self._jobs.append(room.least)
        rounds = self._rounds.setdefault(job.chain, {})
        rounds[job.round] = rounds.get(job.round, 0) + room.least
        if not room.guessed:
            sure = self._sure.setdefault(job.chain, {})
            sure[job.round] = sure.get(job.round, 0) + room.least
            self._known.append(room.least)

    @property
    def made(self) -> int:
        """All of them."""
        return sum(self._jobs)

    @property
    def stays(self) -> int:
        """Those that are not removed; of the best rounds, which nobody knows, the largest."""
        if self._keep is Keep.all:
            return self.made
        if self._keep is Keep.results:
            return 0
        chosen = max if self._keep is Keep.best else _last
        return sum(chosen(rounds.values()) for rounds in self._rounds.values())

    @property
    def least(self) -> int:
        """What is there at some time whatever is drawn, of those whose size is known."""
        if self._keep is Keep.all:
            return sum(self._known)
        if self._keep is Keep.results:
            return max(self._known, default=0)
        chosen = min if self._keep is Keep.best else _last
        return sum(chosen(rounds.values()) for rounds in self._sure.values())

    def at_once(self, trainings: int) -> int:
        """The most at any time: of each chain one round, which the next is learnt from, and what is just trained.

        Where there is no next round, and nothing is to stay, a chain is evaluated before another is trained.
        """
        if self._keep is Keep.all:
            return self.made
        one_round = self._keep is Keep.results and all(len(rounds) == 1 for rounds in self._rounds.values())
        held = 0 if one_round else sum(max(rounds.values()) for rounds in self._rounds.values())
        return min(self.made, held + sum(sorted(self._jobs)[-(2 if one_round else 1) * trainings :]))


def _last(sizes: Iterable[int]) -> int:
    """Rounds are planned in order."""
    return list(sizes)[-1]


class _Rooms:
    """What jobs of a request take; the same for all jobs of a stage that are as large."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.unknown: dict[str, None] = {}
        datasets = {name: load_dataset(section) for name, section in config.datasets.items()}
        self._letters = {name: 1 if dataset.vocabulary else _LETTERS for name, dataset in datasets.items()}
        self._scales = {name: scale_of(config, dataset, 0, None) for name, dataset in datasets.items()}
        self._sizes: dict[tuple[str, str], tuple[ModelSize | None, ModelSize | None]] = {}
        for name, dataset in datasets.items():
            for model, section in config.models.items():
                size = reference_size(section, dataset)
                self._sizes[name, model] = size, value_size(section, size)
        self._stages: dict[tuple[str, str], tuple[Stage, AlgoConfig]] = {}
        for chain in chains(config):
            self._stages.update(
                {(chain.algo, stage.name): (stage, chain.config) for stage in chain.kind.stages_with(chain.config)}
            )
        self._known: dict[tuple[str, str, str, str, int, int, bool], DiskUse] = {}

    def reckon_with(self, plan: Plan) -> None:
        """Take rounds to have as many prompts as the plan draws, where a dataset has fewer than are asked for."""
        drawn: Counter[tuple[str, str, int, str]] = Counter()
        for job in plan.jobs.values():
            if job.algo != PREPARATION and self._stages[job.algo, job.stage][0].shards == "train":
                drawn[job.dataset, job.chain, job.round, job.stage] += self._prompts(job)
        for name, scale in self._scales.items():
            most = max((prompts for at, prompts in drawn.items() if at[0] == name), default=0)
            if most:
                self._scales[name] = replace(scale, prompts=min(scale.prompts, most))

    def _prompts(self, job: Job) -> int:
        """That a job draws completions of."""
        algo = self._stages[job.algo, job.stage][1]
        return job.samples // max(1, round(algo.drawn(self._scales[job.dataset].samples)))

    def of(self, job: Job) -> DiskUse:
        """What a job takes."""
        often = self._saves_often(job)
        address = (job.algo, job.dataset, job.model, job.stage, job.round, job.samples, often)
        if address not in self._known:
            self._known[address] = self._room(job, often=often)
        return self._known[address]

    def _room(self, job: Job, *, often: bool) -> DiskUse:
        if job.algo == PREPARATION:  # as large as the files that it reads, which are on the disk already
            self.unknown[f"the rows of {job.dataset}"] = None
            return DiskUse(_MANIFEST)
        stage, algo = self._stages[job.algo, job.stage]
        if job.algo == REFERENCE and stage.scales:
            return self._reference(job, often=often)
        if stage.saves:
            return self._trained(job, stage, algo, often=often)
        if stage.scales:
            self.unknown[f"what {job.algo} saves"] = None
        scale, settings = self._scales[job.dataset], self.config.evaluation
        if stage.shards == "train":
            each, files = _collected(algo, self._has_reward(job.algo), scale), _MANIFEST + _NOTED
            if stage.draws:
                drawn = _kept(algo, replace(scale, decided=1)) if algo.guides else algo.drawn(scale.samples)
                one = _sequence(algo, scale) + _DRAWN + self._letters[job.dataset] * scale.tokens
                each = drawn * one + scale.samples * _GROUP
                files += _SECOND
            return DiskUse(files + round(self._prompts(job) * each))
        if stage.shards == "eval":
            each = len(settings.etas) + 1 if stage.only_with else 1
            text = self._letters[job.dataset] * (scale.prompt + scale.tokens)
            greedy = job.samples // settings.num_samples if job.algo == REFERENCE else 0
            return DiskUse(_MANIFEST + (each * job.samples + greedy) * (_LINE + text))
        if stage.name == "metrics":
            measures = settings.num_prompts * _MEASURES
            return DiskUse(_METRICS + measures * (2 if job.algo == REFERENCE else 1))  # of its greedy answers too
        return DiskUse(_MANIFEST)

    def _reference(self, job: Job, *, often: bool) -> DiskUse:
        model, size = self.config.models[job.model], self._sizes[job.dataset, job.model][0]
        if size is None:
            self.unknown[f"models.{job.model}"] = None
            return DiskUse(_MANIFEST + _POINTER)
        if not model.is_trained and not (model.path and (is_gguf(model.path) or is_adapters(model.path))):
            return DiskUse(_MANIFEST + _POINTER)  # it stays where it is
        steps = model.demonstrations and getattr(model, "steps", 0)
        copy = _saved(Optimizer.adamw) * size.weights if model.is_trained else 0
        return DiskUse(
            size.written() + _MODEL + _told(steps),
            meanwhile=2 * copy if often else 0,
            least=size.written(),
            guessed=not size.exact,
        )

    def _trained(self, job: Job, stage: Stage, algo: AlgoConfig, *, often: bool) -> DiskUse:
        """Of a stage that saves models, and of what it says of their training."""
        if not algo.trains:
            return DiskUse(_MANIFEST)
        reference, backbone = self._sizes[job.dataset, job.model]
        size = reference if stage.saves == "policy" else backbone
        if size is None:
            self.unknown[f"models.{job.model}"] = None
            return DiskUse(_MODEL)
        learnt = getattr(algo, "reward_model", None)
        number = getattr(learnt, "folds", 1) if stage.saves == "rewards" and learnt is not None else 1
        if stage.saves == "policy":
            each, changed = size.written(), size.weights
            lora = getattr(algo, "lora", None)
            if rank := getattr(lora, "rank", 0):
                goes_on = getattr(algo, "warm_start", True) and not algo.draws_to_train
                rounds = job.round if goes_on else 1
                rounds += self.config.rounds_of_training * len(starts_of(algo, self.config.algos))
                changed = size.adapters(rank, getattr(lora, "target_modules", None))
                if stores_adapters(algo, self.config.algos):
                    each = size.tokenizer + rounds * (4 * changed + size.headers + _ADAPTERS)
        else:
            head = _head(stage, algo, size)
            each, changed = size.written(whole=False) + 4 * head, size.weights - size.output + head
        saved = _saved(self.config.training.optimizer)
        if stage.saves == "policy" and algo.draws_to_train:  # which leaves its optimizer for the next round
            each += (saved - 4) * changed
        # All reward models but the last wait for the end of the stage, each with a checkpoint of its own.
        copies = (2 if often else 0) + (number if stage.saves == "rewards" and learnt is not None else 0)
        scale = self._scales[job.dataset]
        rounds = job.round if getattr(algo, "aggregate", True) else 1
        sequences = rounds * scale.prompts * algo.trained(job.stage, scale.samples, scale.decided)
        steps = round(sequences / max(1, getattr(learnt if number > 1 else algo, "batch_size", 1)))
        again = self._labelled(algo, scale) * rounds * scale.prompts if stage.name == "reward" else 0
        return DiskUse(
            number * (each + _MODEL) + _told(steps) + round(again),
            meanwhile=copies * saved * changed,
            least=number * each,
            guessed=not size.exact,
        )

    def _saves_often(self, job: Job) -> bool:
        """Whether a training lasts until its first checkpoint is due."""
        training = self.config.training
        if training.checkpoint_every_steps:
            return True
        return 0 < training.checkpoint_every_minutes * 60 < job.seconds

    def _has_reward(self, algo: str) -> bool:
        return (algo, "reward") in self._stages

    def _labelled(self, algo: AlgoConfig, scale: Scale) -> float:
        """Bytes of a prompt's completions, which a stage that learns rewards writes once more with its scores."""
        return _kept(algo, scale) * _sequence(algo, scale)


def _collected(algo: AlgoConfig, has_reward: bool, scale: Scale) -> float:
    """Bytes that are kept of a prompt to train on."""
    pairs = 0.0
    if has_reward and (learnt := getattr(algo, "reward_model", None)) is not None:
        passes = max(1, learnt.epochs) * max(1, learnt.folds - 1)
        pairs = algo.trained("reward", scale.samples, scale.decided) / passes
    return _kept(algo, scale) * _sequence(algo, scale) + pairs * _width(scale)


def _kept(algo: AlgoConfig, scale: Scale) -> float:
    """Completions of a prompt that are trained on."""
    return algo.trained("train", scale.samples, scale.decided) / max(1, algo.epochs)


def _sequence(algo: AlgoConfig, scale: Scale) -> int:
    """Bytes of a completion with its prompt, and with the log-probabilities of its tokens where those are kept."""
    return _width(scale) + (4 * scale.tokens if algo.keeps_logprobs else 0)


def _width(scale: Scale) -> int:
    return _SEQUENCE + 4 * (scale.prompt + scale.tokens)


def _head(stage: Stage, algo: AlgoConfig, size: ModelSize) -> int:
    """Weights of the head of a value model; that of a reward model is one number for every position."""
    if stage.saves == "rewards":
        return size.hidden + 1
    outputs = 1 if getattr(algo, "head", HeadType.v) is HeadType.v else size.vocabulary
    return (size.hidden + 1) * outputs * int(getattr(algo, "atoms", 1))


def _told(steps: int) -> int:
    """Bytes of what is told of a training's steps."""
    return _CURVE * min(steps, MAX_STEPS) + _LOSS * steps
