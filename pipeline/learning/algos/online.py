"""Online training: draw a batch of prompts, complete and score it, then take its optimizer steps.

    <checkpoints>/drawn/00000012/    batch.json, what `keep` writes of a batch, by the times that it was drawn, and
                                     the sums of all, sums.json; until a checkpoint is past it

As in TRL's `GRPOTrainer`, each batch gets ``steps_per_generation`` optimizer steps, ``num_iterations`` times. Each
batch is on disk before its first step. So an interrupted training continues with the same completions and rewards,
even if a reward is not deterministic, and reaches the same weights. A damaged batch is drawn again; then
checkpoints from between its steps are ignored.
"""

import math
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.files import file_sha256, fsync, json_text, walk
from pipeline.foreign import ForeignDataError, parse_json, read_plain
from pipeline.learning.algos.base import JobContext, tokens_generated
from pipeline.learning.algos.groups import Groups, Judge, draw_groups, exact_logprobs, score_groups
from pipeline.learning.algos.opening import open_dataset, reference_tokenizer
from pipeline.learning.algos.policy_config import OnlineConfig
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.models.batch_size import BatchSize, BatchSizes
from pipeline.learning.models.flops import Purpose, metered, model_cost, spend
from pipeline.learning.rewards.traits import RewardFailures
from pipeline.learning.training import loop
from pipeline.learning.training.loop import Fitting, TrainingSet, add_to_curve, is_drawn
from pipeline.learning.training.scoring import inner_model, passes_of, without_padding
from pipeline.outputs.formats import Tally

ABOUT = "batch.json"
SUMS = "sums.json"
_FAULT = "first_fault.txt"
_TALLIED = ("count", "unscored", "equal", "wrong", "same")
_ANEW = "groups_drawn_anew"
_T = TypeVar("_T", bound=str)


@dataclass(frozen=True)
class Timetable:
    """Schedule of which batch is trained on at which step. Pure.

    Attributes:
        prompts: Prompts of the training.
        at_once: Prompts per batch; the last batch may have fewer.
        per_step: Prompts per optimizer step.
        epochs: Passes over each batch.
    """

    prompts: int
    at_once: int
    per_step: int
    epochs: int = 1

    @property
    def steps(self) -> int:
        """Optimizer steps of the training."""
        whole, rest = divmod(self.prompts, self.at_once)
        return self.epochs * (whole * math.ceil(self.at_once / self.per_step) + math.ceil(rest / self.per_step))

    def at(self, step: int) -> tuple[int, int]:
        """Return the batch of a step, and the index of the step within it; both from 0."""
        return divmod(step, self.epochs * math.ceil(self.at_once / self.per_step))

    def rows(self, batch: int) -> tuple[int, int]:
        """Return the range of prompts of a batch: its first, and the one after its last."""
        return batch * self.at_once, min(self.prompts, (batch + 1) * self.at_once)

    def parts(self, batch: int) -> int:
        """Return the steps of one pass over a batch."""
        start, stop = self.rows(batch)
        return math.ceil((stop - start) / self.per_step)

    def drawn_after(self, step: int) -> int:
        """Return the number of prompts whose batches are drawn after `step` steps."""
        return 0 if step == 0 else self.rows(self.at(step - 1)[0])[1]


@dataclass(frozen=True)
class DrawnBatch:
    """A drawn batch, ready for training.

    Attributes:
        made: Sequences of the batch, and their loss; whole numbers of its `about` are added up over the training.
        figures: Metrics of the batch for the curve, by name: values that are averaged for a step.
        flops: FLOPs of drawing and scoring, by purpose.
        counts: Counts of what was drawn, by name, to add up over the training.
    """

    made: TrainingSet
    figures: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    flops: Mapping[Purpose, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


Draw = Callable[[int], DrawnBatch]
"""Function that draws a batch with the current model, or returns one that was drawn in an earlier attempt."""


@dataclass(frozen=True)
class Totals:
    """Running totals of a training: lists of plain data, which its checkpoints keep.

    Attributes:
        tokens: Tokens trained on, after each step.
        flops: FLOPs by purpose, of each batch and each step.
        counts: Counts of each batch; see `DrawnBatch`.
        about: Whole numbers about each batch for ``training.json``.
    """

    tokens: list[int] = field(default_factory=list)
    flops: list[Mapping[Purpose, int]] = field(default_factory=list)
    counts: list[Mapping[str, int]] = field(default_factory=list)
    about: list[Mapping[str, int]] = field(default_factory=list)

    def tokens_after(self, steps: int) -> int:
        """Return the tokens trained on in the first steps."""
        return self.tokens[steps - 1] if steps else 0


def _sum(parts: Iterable[Mapping[_T, int]]) -> Counter[_T]:
    total: Counter[_T] = Counter()
    for part in parts:
        total.update(part)
    return total


def fit_drawn(
    model: PreTrainedModel, timetable: Timetable, drawn: Draw, fitting: Fitting, *, longest: int, group: int = 1
) -> tuple[list[float], Totals]:
    """Train a policy in place on batches that it draws.

    Args:
        model: The model, possibly with adapters, on its device.
        timetable: Schedule of batches.
        drawn: Called for each batch in turn, also for the batch in which a training was interrupted.
        fitting: How to train; its `epochs` are those of the timetable.
        longest: Most tokens of a completion.
        group: Sequences that must stay together.

    Returns:
        The loss of each step, and the totals.
    """
    micro_batch = fitting.micro_batch(
        model, fitting.batch_size, longest=longest, group=group, policy=True, work=" online"
    )
    steps = _Steps(model, timetable, drawn, fitting, micro_batch)
    loop.keep_few_activations(model, fitting)
    losses = loop.train(
        model,
        fitting,
        timetable.steps,
        steps.losses_of,
        micro_batch=micro_batch,
        tokens_after=steps.totals.tokens_after,
        told=vars(steps.totals),
        before=steps.prepare,
    )
    for purpose, count in _sum(steps.totals.flops).items():
        spend(purpose, count)
    return losses, steps.totals


class _Steps:
    """Steps of a training on drawn batches: the current batch, its sequences by step, and the totals."""

    def __init__(
        self, model: PreTrainedModel, timetable: Timetable, drawn: Draw, fitting: Fitting, micro_batch: BatchSize
    ) -> None:
        self.totals = Totals()
        self._model, self._timetable, self._drawn = model, timetable, drawn
        self._fitting, self._micro_batch = fitting, micro_batch
        self._cost, self._number = model_cost(model), -1
        self._batch: DrawnBatch
        self._parts: Sequence[NDArray[np.int64]]
        self._before: Callable[[int], None]

    def prepare(self, step: int) -> None:
        """Draw or load the batch of a step, and prepare it."""
        (number, within), totals = self._timetable.at(step), self.totals
        if number != self._number:
            self._model.eval()
            batch = self._drawn(number)
            with metered() as meter:
                self._take(number, batch)
            self._model.train()
            if within == 0:  # else they are in the checkpoint
                totals.flops.extend((batch.flops, meter.flops))
                totals.counts.append(batch.counts)
                totals.about.append({name: one for name, one in batch.made.about.items() if isinstance(one, int)})
        self._before(within)
        data, rows = self._batch.made.data, self._parts[within]
        totals.tokens.append(totals.tokens_after(step) + int(data.lengths[rows].sum()))
        if len(rows):
            totals.flops.append({"training": self._cost.training(passes_of(self._model, data.some(rows)))})

    def losses_of(self, step: int) -> Iterator[Tensor]:
        """Yield the losses of a step, and report it."""
        (_, within), fitting = self._timetable.at(step), self._fitting
        if is_drawn():
            add_to_curve(**self._batch.figures, staleness=within)
        # Not around drawing, which calls the model differently.
        if len(self._parts[within]):
            with without_padding(self._model, fitting.training.padding_free):
                yield from fitting.losses(self._batch.made, self._parts[within], self._micro_batch)
        if fitting.on_step is not None:
            tokens = self.totals.tokens_after(step + 1) + sum(
                each.get("generated", 0) for each in self.totals.counts
            )
            fitting.on_step(self._timetable.drawn_after(step + 1), self._timetable.prompts, tokens)

    def _take(self, number: int, batch: DrawnBatch) -> None:
        """Make a batch the current one, and divide its sequences among its steps."""
        self._number, self._batch, made = number, batch, batch.made
        epochs, parts, count = self._timetable.epochs, self._timetable.parts(number), len(made.data)
        if count == 0:
            self._parts, self._before = [np.zeros(0, np.int64)] * (epochs * parts), lambda _: None
            return
        # If a pass is a single step, order does not matter.
        once, own_seed = epochs * parts == 1, self._fitting.seed * 1_000_003 + number
        order = np.arange(count) if once else loop.grouped_order(count, made.group, epochs, own_seed)
        passes = order.reshape(epochs, -1, made.group)
        self._parts = [part.reshape(-1) for each in passes for part in np.array_split(each, parts)]
        self._before = made.prepare(self._parts)


class Method(Protocol):
    """What online training asks of a method."""

    def judge(self, ctx: JobContext) -> Judge | None:
        """Return the function that scores completions; None for the rewards of the dataset."""

    def keep(self, ctx: JobContext, groups: Groups) -> None:
        """Write the part of a draw's groups that training needs."""

    def training_set(self, ctx: JobContext, model: PreTrainedModel, folders: Sequence[Path]) -> TrainingSet:
        """Return what `keep` wrote to folders as data to train on, and the loss."""

    def spent_before(self, ctx: JobContext) -> int:
        """Return the tokens that earlier stages of this round have trained on."""

    def told_before(self, ctx: JobContext) -> dict[str, Any]:
        """Return entries of earlier stages of this round to add to ``training.json``."""


def fit_online(
    algorithm: Method, ctx: JobContext, model: PreTrainedModel, fitting: Fitting
) -> tuple[dict[str, Any], Tally | None]:
    """Train a policy on batches that it draws.

    Args:
        algorithm: The method.
        ctx: Context of the training.
        model: The policy, changed in place.
        fitting: How to train.

    Returns:
        Entries of ``training.json``, and the tally of what became of the draws.
    """
    algo, batches = ctx.settings(OnlineConfig), _Batches(algorithm, ctx, model, fitting)
    if fitting.checkpoint is not None:
        fitting.checkpoint.lacks = batches.lacks
    steps = batches.timetable.steps
    fitting = replace(
        fitting,
        steps_before=(ctx.round - 1) * steps if algo.warm_start else 0,
        horizon=math.inf if algo.horizon is None else algo.horizon * steps,
        goes_on_from=ctx.optional_input("train@previous") if algo.warm_start else None,
        leaves_to=ctx.out,
    )
    longest, group = batches.policy.limit, algo.num_generations
    losses, totals = fit_drawn(model, batches.timetable, batches.get, fitting, longest=longest, group=group)
    counts = _sum(totals.counts)
    if ctx.ranks.is_first:
        RewardFailures(counts["scored"], counts["failed"], batches.kept.first_fault()).write(ctx.out)
    about = {
        "tokens_generated": tokens_generated(ctx) + counts["generated"],
        **({_ANEW: counts[_ANEW]} if _ANEW in counts else {}),
        **_sum(totals.about),
        **algorithm.told_before(ctx),
        "tokens_trained": totals.tokens_after(len(losses)) + algorithm.spent_before(ctx),
        "loss": losses,
    }
    return about, Tally("prompts", **{name: counts[name] for name in _TALLIED})


class _Batches:
    """Batches of a training by number: each is drawn with the policy as it is then, or in an earlier attempt.

    Attributes:
        timetable: Schedule of the batches.
        policy: The policy that draws.
        kept: Batches on disk.
    """

    def __init__(self, algorithm: Method, ctx: JobContext, model: PreTrainedModel, fitting: Fitting) -> None:
        self._algorithm, self._ctx, self._model, self._checkpoint = algorithm, ctx, model, fitting.checkpoint
        self._algo, self._dataset = algo, dataset = ctx.settings(OnlineConfig), open_dataset(ctx)
        self._ids = dataset.round_ids(ctx.seed, ctx.round, ctx.config.data_collection.prompts_per_round)
        per_step = algo.batch_size // algo.num_generations
        self.timetable = Timetable(len(self._ids), per_step * algo.steps_per_generation, per_step, algo.epochs)
        inner, generation = inner_model(model), ctx.config.generation
        sizes, tokenizer = BatchSizes(ctx.hints, ctx.device, inner), reference_tokenizer(ctx)
        self.policy = TextPolicy(inner, tokenizer, generation, dataset, ctx.device, sizes=sizes)
        self.kept, self._judge = KeptBatches(ctx.checkpoints / "drawn"), algorithm.judge(ctx)

    def lacks(self, step: int) -> str | None:
        """Say why training cannot go on after a number of steps; None if it can."""
        number, within = self.timetable.at(step)
        return "the batch to go on with is not what was drawn" if within and not self.kept.has(number) else None

    def get(self, number: int) -> DrawnBatch:
        """Return a batch; draw it if it is not on disk."""
        ctx, kept = self._ctx, self.kept
        if ctx.ranks.is_first and self._checkpoint is not None:
            kept.forget_before(self.timetable.at(self._checkpoint.saved_step)[0])
        if not ctx.ranks.made_by_first(lambda: kept.has(number)):
            self._draw(number)
            ctx.ranks.barrier()  # by then it is written
        folder = kept.folder(number)
        about = parse_json(read_plain(folder / ABOUT))
        with metered() as meter:
            parts = sorted((part for part in folder.iterdir() if part.is_dir()), key=lambda part: int(part.name))
            made = self._algorithm.training_set(ctx, self._model, parts)
        kept.first_fault(about["first fault"])
        figures = {name: np.asarray(values, np.float64) for name, values in about["figures"].items()}
        return DrawnBatch(made, figures, _sum((about["flops"], meter.flops)), about["counts"])

    def _draw(self, number: int) -> None:
        """Draw a batch with the current policy, score it, and write it to disk; all ranks together."""
        ctx, faults, algo = self._ctx, RewardFailures(), self._algo
        # With one batch nobody waits, and a training ends at a step, with a checkpoint.
        own = replace(ctx, failures=faults, progress=lambda *_, **__: None, stopping=lambda: False)
        most = algo.dynamic_sampling if algo.num_generations > 1 else 1
        with metered() as meter, loop.computing_in(ctx.config.system.dtype, ctx.device, ctx.ranks):
            every, taken = drawn_anew(partial(self._groups, own, number), self.timetable.rows(number), most)
            # Each rank has a part of the prompts.
            meter.flops["decoding"] = int(ctx.ranks.sum(meter.flops["decoding"]))
            if not ctx.ranks.is_first:
                return
            with self.kept.writing(number, durable=self.timetable.parts(number) * algo.epochs > 1) as folder:
                for time, groups in enumerate(taken):
                    (folder / str(time)).mkdir()
                    logprobs = exact_logprobs(own, algo, self.policy, groups)
                    self._algorithm.keep(replace(own, out=folder / str(time)), replace(groups, logprobs=logprobs))
                counts, figures = _counts(every, faults), _figures(every, self.policy)
                rewards = np.concatenate([one.scored.values for one in every])
                if not algo.keeps_logprobs and np.isfinite(rewards).any():  # such a loss reports them itself
                    figures["reward"] = rewards[np.isfinite(rewards)].tolist()
                if most > 1:
                    counts[_ANEW] = sum(len(one.keys) for one in every[1:])
                    figures["times_drawn"] = [len(every)]
                about = {"flops": meter.flops, "counts": counts, "figures": figures, "first fault": faults.first}
                (folder / ABOUT).write_text(json_text(about) + "\n")

    def _groups(self, own: JobContext, number: int, first: int, count: int, time: int) -> Groups:
        """Draw and score groups for a batch; see `drawn_anew`."""
        ids = self._ids.take(range(first, first + count), mode="wrap")
        name = f"{own.algo}/{own.round}" + (f"/again/{number}/{time}" if time else "")
        rows = [self._dataset.row(int(row)) for row in ids]
        drawn = draw_groups(own, self._dataset, self.policy, self._algo.num_generations, rows, name)
        return score_groups(own, self._dataset, drawn, name, self._judge)


def drawn_anew(
    draw: Callable[[int, int, int], Groups], rows: tuple[int, int], most: int
) -> tuple[list[Groups], list[Groups]]:
    """Draw a batch, and more prompts to replace those whose completions all score alike.

    The replacements are the next prompts of the round, as many as are missing; they also stay in their own batch.

    Args:
        draw: Called with the index of the first prompt, the number of prompts, and how often the batch was drawn
            before.
        rows: The prompts of the batch.
        most: Maximum number of draws; groups of the last draw are taken whatever their scores.

    Returns:
        All groups drawn, and the groups to train on: as many as the batch has prompts.
    """
    every: list[Groups] = []
    taken: list[Groups] = []
    first, missing = rows[0], rows[1] - rows[0]
    while missing:
        groups = draw(first, missing, len(every))
        every.append(groups)
        kept = groups if len(every) == most else groups.some(groups.signal())
        taken += [kept] if len(kept.keys) else []
        first, missing = first + missing, missing - len(kept.keys)
    return every, taken


def _counts(drawn: Sequence[Groups], faults: RewardFailures) -> Counter[str]:
    """Return the batch's counts: of groups by what became of them, of tokens, and of scored completions."""
    tallied = ({name: getattr(groups.tally(), name) for name in _TALLIED} for groups in drawn)
    tokens = sum(groups.generated for groups in drawn)
    return _sum([*tallied, {"generated": tokens, "scored": faults.completions, "failed": faults.failed}])


def _figures(drawn: Sequence[Groups], policy: TextPolicy) -> dict[str, list[float]]:
    """Return the batch's metrics for the curve beside those of its loss: tokens of completions, share cut off."""
    completions = [tokens for groups in drawn for tokens in groups.tokens]
    count, prompts = max(1, len(completions)), max(1, sum(len(groups.keys) for groups in drawn))
    return {
        "length": [sum(map(len, completions)) / count],
        "truncated": [sum(map(policy.truncated, completions)) / count],
        "without_signal": [sum(groups.tally().equal for groups in drawn) / prompts],
    }


class KeptBatches:
    """Drawn batches on disk that may be trained on again, by number."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def folder(self, number: int) -> Path:
        """Return the folder of a batch."""
        return self._place / f"{number:08d}"

    def has(self, number: int) -> bool:
        """Return whether a batch is stored whole.

        If not, later batches come from another policy and are removed.
        """
        with suppress(OSError, ForeignDataError):
            if parse_json(read_plain(self.folder(number) / SUMS)) == _sums(self.folder(number)):
                return True
        self._remove(lambda other: other >= number)
        return False

    def forget_before(self, number: int) -> None:
        """Remove earlier batches, which no restart can need any more."""
        self._remove(lambda other: other < number)

    def first_fault(self, said: str = "") -> str:
        """Return the message about the first completion on which a reward failed, in all attempts.

        It is stored.
        """
        place = self._place / _FAULT
        if said and not place.exists():
            place.write_text(said)
        return read_plain(place).decode(errors="replace") if place.exists() else ""

    @contextmanager
    def writing(self, number: int, *, durable: bool) -> Iterator[Path]:
        """Yield a folder to write a batch to, which becomes visible only when it is complete.

        Args:
            number: Number of the batch.
            durable: Whether it must survive a loss of power: a checkpoint may come before its last step.
        """
        writing = self._place / f".writing-{number}"
        shutil.rmtree(writing, ignore_errors=True)
        writing.mkdir(parents=True)
        yield writing
        (writing / SUMS).write_text(json_text(_sums(writing)))
        for name, status in walk(writing) if durable else ():
            fsync(writing / name, folder=stat.S_ISDIR(status.st_mode))
        writing.rename(self.folder(number))
        if durable:
            fsync(self._place, folder=True)

    def _remove(self, is_past: Callable[[int], bool]) -> None:
        with suppress(FileNotFoundError):
            for path in list(self._place.iterdir()):
                if path.name.isdecimal() and is_past(int(path.name)):
                    shutil.rmtree(path, ignore_errors=True)


def _sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a batch."""
    files = (name for name, status in walk(folder) if stat.S_ISREG(status.st_mode) and name != SUMS)
    return {name: file_sha256(folder / name) for name in files}
