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
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.files import file_sha256, fsync, json_text, walk
from pipeline.foreign import ForeignDataError, parse_json, read_plain
from pipeline.learning.algos.base import JobContext, tokens_generated
from pipeline.learning.algos.groups import Groups, draw_groups, exact_logprobs, score_groups
from pipeline.learning.algos.opening import open_dataset, reference_tokenizer
from pipeline.learning.algos.policy_config import OnlineConfig
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.models.batch_size import BatchSizes
from pipeline.learning.models.flops import Purpose, metered, model_cost, spend
from pipeline.learning.rewards.traits import RewardFailures
from pipeline.learning.training import loop
from pipeline.learning.training.loop import Fitting, TrainingSet, add_to_curve, is_drawn
from pipeline.learning.training.scoring import inner_model, passes_of, without_padding
from pipeline.outputs.formats import Tally

if TYPE_CHECKING:
    from peft import PeftModel

ABOUT = "batch.json"
SUMS = "sums.json"
_FAULT = "first_fault.txt"
_TALLIED = ("count", "unscored", "equal", "wrong", "same")


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
        made: Sequences of the batch, and their loss.
        figures: Metrics of the batch for the curve, by name: values that are averaged for a step.
        counts: Counts to add up over the training, by name; FLOPs of drawing and scoring by purpose.
    """

    made: TrainingSet
    figures: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


def fit_drawn(
    model: "PreTrainedModel | PeftModel",
    timetable: Timetable,
    drawn: Callable[[int], DrawnBatch],
    fitting: Fitting,
    *,
    longest: int,
    group: int = 1,
    **how: Any,
) -> tuple[list[float], dict[str, int]]:
    """Train a policy in place on batches that it draws.

    Args:
        model: The model, on its device.
        timetable: Schedule of batches.
        drawn: Draws a batch with the current model, or returns one that was drawn in an earlier attempt. Called
            for each batch in turn, also for the batch in which a training was interrupted.
        fitting: How to train; its `epochs` are those of the timetable.
        longest: Most tokens of a completion.
        group: Sequences that must stay together.
        how: Further arguments of `train`.

    Returns:
        The loss of each step; and counts over all batches, with ``tokens`` for the tokens trained on.
    """
    micro_batch = fitting.micro_batch(
        model, fitting.batch_size, longest=longest, group=group, policy=True, work=" online"
    )
    told: dict[str, list[float]] = defaultdict(list)
    cost, now = model_cost(model), _Now()
    loop.keep_few_activations(model, fitting)

    def before(step: int) -> None:
        """Draw or load the batch of a step, and prepare it."""
        number, within = timetable.at(step)
        if number != now.number:
            model.eval()
            batch = drawn(number)
            with metered() as meter:
                now.take(number, batch, timetable, fitting.seed)
            model.train()
            if within == 0:
                for name, count in chain(meter.flops.items(), batch.counts.items()):
                    told[name].append(count)
        now.before(within)
        data, rows = now.batch.made.data, now.parts[within]
        told["tokens"].append(float(data.lengths[rows].sum()) + (told["tokens"][-1] if told["tokens"] else 0))
        told["training"].append(cost.training(passes_of(model, data.some(rows))) if len(rows) else 0)

    def losses_of(step: int) -> Iterator[Tensor]:
        _, within = timetable.at(step)
        if is_drawn():
            add_to_curve(**now.batch.figures, staleness=within)
        # Not around drawing, which calls the model differently.
        if len(now.parts[within]):
            with without_padding(model, fitting.training.padding_free):
                yield from fitting.losses(now.batch.made, now.parts[within], micro_batch)
        if fitting.on_step is not None:
            done = timetable.drawn_after(step + 1)
            fitting.on_step(done, timetable.prompts, int(told["tokens"][-1] + sum(told.get("generated", ()))))

    losses = loop.train(
        model,
        fitting,
        timetable.steps,
        losses_of,
        micro_batch=micro_batch,
        tokens_after=lambda steps: int(told["tokens"][steps - 1]) if steps else 0,
        told=told,
        before=before,
        **how,
    )
    tokens = int(told.pop("tokens")[-1]) if losses else 0
    counts = {name: int(sum(values)) for name, values in told.items()}
    for purpose in [each for each in get_args(Purpose) if each in counts]:
        spend(purpose, counts.pop(purpose))
    return losses, {"tokens": tokens, **counts}


class _Now:
    """The current batch, and the indices of its sequences by step."""

    number = -1
    batch: DrawnBatch
    parts: Sequence[NDArray[np.int64]]
    before: Callable[[int], None]

    def take(self, number: int, batch: DrawnBatch, timetable: Timetable, seed: int) -> None:
        self.number, self.batch, made = number, batch, batch.made
        epochs, parts, count = timetable.epochs, timetable.parts(number), len(made.data)
        if count == 0:
            self.parts, self.before = [np.zeros(0, np.int64)] * (epochs * parts), lambda _: None
            return
        # If a pass is a single step, order does not matter.
        once, own_seed = epochs * parts == 1, seed * 1_000_003 + number
        order = np.arange(count) if once else loop.grouped_order(count, made.group, epochs, own_seed)
        passes = order.reshape(epochs, -1, made.group)
        self.parts = [part.reshape(-1) for each in passes for part in np.array_split(each, parts)]
        self.before = made.prepare(self.parts)


def fit_online(
    algorithm: Any,
    ctx: JobContext,
    model: "PreTrainedModel | PeftModel",
    fitting: Fitting,
) -> tuple[dict[str, Any], Tally | None]:
    """Train a policy on batches that it draws.

    Args:
        algorithm: Method of the class `PostTrainingAlgorithms`: its `judge` scores, its `keep` selects from a
            batch, and its `training_set` gives the loss.
        ctx: Context of the training.
        model: The policy, changed in place.
        fitting: How to train.

    Returns:
        Entries of ``training.json``, and the tally of what became of the draws.
    """
    algo, dataset = ctx.settings(OnlineConfig), open_dataset(ctx)
    ids = dataset.round_ids(ctx.seed, ctx.round, ctx.config.data_collection.prompts_per_round)
    per_step = algo.batch_size // algo.num_generations
    timetable = Timetable(len(ids), per_step * algo.steps_per_generation, per_step, algo.epochs)
    inner = inner_model(model)
    sizes, generation = BatchSizes(ctx.hints, ctx.device, inner), ctx.config.generation
    policy = TextPolicy(inner, reference_tokenizer(ctx), generation, dataset, ctx.device, sizes=sizes)
    most = algo.dynamic_sampling if algo.num_generations > 1 else 1
    kept, judge = KeptBatches(ctx.checkpoints / "drawn"), algorithm.judge(ctx)

    def draw(number: int) -> None:
        faults = RewardFailures()
        # With one batch nobody waits, and a training ends at a step, with a checkpoint.
        own = replace(ctx, failures=faults, progress=lambda *_, **__: None, stopping=lambda: False)

        def groups_of(first: int, count: int, time: int) -> Groups:
            rows = [dataset.row(int(row)) for row in ids.take(range(first, first + count), mode="wrap")]
            name = f"{ctx.algo}/{ctx.round}" + (f"/again/{number}/{time}" if time else "")
            drawn = draw_groups(own, dataset, policy, algo.num_generations, rows, name)
            return score_groups(own, dataset, drawn, name, judge)

        with metered() as meter, loop.computing_in(ctx.config.system.dtype, ctx.device, ctx.ranks):
            every, taken = drawn_anew(groups_of, timetable.rows(number), most)
            decoding = int(ctx.ranks.sum(meter.flops["decoding"]))  # each rank has a part of the prompts
            if not ctx.ranks.is_first:
                return
            with kept.writing(number, durable=timetable.parts(number) * algo.epochs > 1) as folder:
                for time, groups in enumerate(taken):
                    (folder / str(time)).mkdir()
                    logprobs = exact_logprobs(own, algo, policy, groups)
                    algorithm.keep(replace(own, out=folder / str(time)), replace(groups, logprobs=logprobs))
                counts, figures = _counts(every), _figures(every, policy)
                if not algo.keeps_logprobs:  # a loss with rewards reports them itself
                    rewards = np.concatenate([one.scored.values for one in every])
                    figures["reward"] = rewards[np.isfinite(rewards)].tolist()
                if most > 1:
                    counts["groups_drawn_anew"] = sum(len(one.keys) for one in every[1:])
                    figures["times_drawn"] = [len(every)]
                about = {
                    "flops": {**meter.flops, "decoding": decoding},
                    "counts": {**counts, "scored": faults.completions, "failed": faults.failed},
                    "figures": figures,
                    "first fault": faults.first,
                }
                (folder / ABOUT).write_text(json_text(about) + "\n")

    def drawn(number: int) -> DrawnBatch:
        if ctx.ranks.is_first and fitting.checkpoint is not None:
            kept.forget_before(timetable.at(fitting.checkpoint.saved_step)[0])
        if not ctx.ranks.made_by_first(lambda: kept.has(number)):
            draw(number)
            ctx.ranks.made_by_first(lambda: None)  # by then it is written
        folder = kept.folder(number)
        about = parse_json(read_plain(folder / ABOUT))
        with metered() as meter:
            parts = sorted((part for part in folder.iterdir() if part.is_dir()), key=lambda part: int(part.name))
            made = algorithm.training_set(ctx, cast("PreTrainedModel", model), parts)
        kept.first_fault(about["first fault"])
        figures = {name: np.asarray(values, np.float64) for name, values in about["figures"].items()}
        told = {name: int(value) for name, value in made.about.items() if isinstance(value, int)}
        flops = Counter(about["flops"])
        flops.update(meter.flops)
        return DrawnBatch(made, figures, {**flops, **about["counts"], **told})

    def lacks(step: int) -> str | None:
        number, within = timetable.at(step)
        return "the batch that it goes on with is not what was drawn" if within and not kept.has(number) else None

    if fitting.checkpoint is not None:
        fitting.checkpoint.lacks = lacks
    losses, counts = fit_drawn(
        model,
        timetable,
        drawn,
        fitting,
        longest=policy.limit,
        group=algo.num_generations,
        steps_before=(ctx.round - 1) * timetable.steps if algo.warm_start else 0,
        horizon=math.inf if algo.horizon is None else algo.horizon * timetable.steps,
        goes_on_from=ctx.optional_input("train@previous") if algo.warm_start else None,
        leaves_to=ctx.out,
    )
    failures = RewardFailures(counts.pop("scored", 0), counts.pop("failed", 0), kept.first_fault())
    if ctx.ranks.is_first:
        failures.write(ctx.out)
    tokens_trained = counts.pop("tokens") + algorithm.spent_before(ctx)
    tally = Tally("prompts", **{name: counts.pop(name, 0) for name in _TALLIED})
    about = {
        "tokens_generated": tokens_generated(ctx) + counts.pop("generated", 0),
        **counts,
        **algorithm.told_before(ctx),
        "tokens_trained": tokens_trained,
    }
    return {**about, "loss": losses}, tally


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


def _counts(drawn: Sequence[Groups]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for groups in drawn:
        counts.update({name: getattr(groups.tally(), name) for name in _TALLIED}, generated=groups.generated)
    return counts


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
        for other in self._numbers():
            if other >= number:
                shutil.rmtree(self.folder(other), ignore_errors=True)
        return False

    def forget_before(self, number: int) -> None:
        """Remove earlier batches, which no restart can need any more."""
        for other in self._numbers():
            if other < number:
                shutil.rmtree(self.folder(other), ignore_errors=True)

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

    def _numbers(self) -> list[int]:
        with suppress(FileNotFoundError):
            return [int(path.name) for path in self._place.iterdir() if path.name.isdecimal()]
        return []


def _sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a batch."""
    files = (name for name, status in walk(folder) if stat.S_ISREG(status.st_mode) and name != SUMS)
    return {name: file_sha256(folder / name) for name in files}
