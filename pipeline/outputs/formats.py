"""The files of an output that someone reads back: what they are called, and what they hold.

A stage of the user's own may write any of them, so they are foreign. `check_output` holds every output to these
formats before it is committed: a wrong file fails the job that wrote it, and nothing of it is stored. A stored one
is read by the same types (`reading`), since an older version may have committed it without a look.
docs/extending.md has them for users.
"""

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from msgspec import Meta

from pipeline.errors import JobError
from pipeline.files import json_text, open_plain
from pipeline.foreign import ForeignDataError, converted, read_json, read_json_file, read_plain
from pipeline.outputs.manifest import job_of

METRICS, SAMPLES, TRAINING = "metrics.json", "samples.jsonl", "training.json"
GENERATION, REWARD, POINTER = "generation.json", "reward.json", "model.json"
DATASET = "dataset.json"
FAULTS = "faults.json"
ASKED = "asked.json"
REPLIES = "replies"
"""Folder of judges' replies among what makes later jobs faster: ``JUDGE/KEY.ID.jsonl``, with the key of a job."""
TOKENIZED = "prompts.json"
PROMPTS = "prompts.safetensors"
OPTIMIZER = "optimizer.safetensors"
"""Optimizer state, for a training that goes on from this one; twice as large as the weights."""
GREEDY = "greedy"
"""Folder of the samples of the greedy reference, in the output of its evaluation."""
ETA = "eta="
"""Prefix of a strength of guidance, in names of folders of a sweep's output and in names of metrics."""
HELD_OUT = "held_out_accuracy"
"""Metric of a reward model: the share of pairs that it was not fitted to that it orders as they are."""
ANSWERING = ("decoding", "guidance")
"""Purposes of an evaluation's FLOPs that count as the cost of an answer, not of measuring it."""
SWEEP_SPLIT = "validation"
"""Prompts that strengths of guidance are tried on."""
PAGE = "docs/extending.md#results"

LARGEST = 1e100
"""Far beyond every figure, and sums of such numbers stay numbers."""
Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Note = Annotated[str, Meta(max_length=2000)]


def _check_names(*names: str) -> None:
    for name in names:
        if not name.isprintable() or name != name.strip():
            raise ValueError(f"expected a name that can be printed, without blanks around it, got {name[:40]!a}")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A row of ``metrics.json``: one measured number with its interval.

    Attributes:
        metric: Name, which no other row has.
        value: The estimate; None where there is nothing to estimate it from.
        ci_low: Lower end of its interval, or None where there is none.
        ci_high: Upper end. The interval of a bootstrap need not hold the estimate.
        n: Prompts that it rests on.
    """

    metric: Name
    value: Number | None
    ci_low: Number | None
    ci_high: Number | None
    n: Count

    def __post_init__(self) -> None:
        _check_names(self.metric)
        if self.ci_low is not None and self.ci_high is not None and self.ci_low > self.ci_high:
            raise ValueError(f"expected `ci_low` <= `ci_high`, got {self.ci_low} and {self.ci_high}")


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Content of ``metrics.json``.

    Attributes:
        rows: Measured numbers, in any order.
    """

    rows: Annotated[list[Metric], Meta(max_length=100_000)]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for row in self.rows:
            if row.metric in seen:
                raise ValueError(f"expected one row for each metric, got two for {row.metric!r}")
            seen.add(row.metric)


@dataclass(frozen=True)
class Sample:
    """One evaluated completion: a line of ``samples.jsonl`` in the output of a stage that evaluates.

    Attributes:
        row: Id of the dataset's row.
        sample: Index among the samples of the row.
        prompt: Text.
        completion: Text, without special tokens.
        tokens: Tokens of the completion, an end-of-text token included.
        reward: Reward of the completion; None where it did not apply.
        correct: Whether the reward says that it is right; None where no reward can say so.
        kl: KL divergence of the policy from the reference over the completion, in nats; None where it is no finite
            number, as of a policy whose training has diverged.
        truncated: Whether it was cut off at the token limit.
        answer: Vote of the completion in maj@k; None for no vote.
        parts: Each of several rewards by itself.
        fault: How a reward failed: ``error``, ``timeout`` or ``crash``.
        solution: The right answer of the row, where it has one; with its first sample alone.
        skipped: Special tokens, other than begins, ends and padding, that its text lacks.
    """

    row: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    sample: Count
    prompt: str
    completion: str
    tokens: Count
    reward: Number | None
    correct: bool | None
    kl: Number | None
    truncated: bool
    answer: str | None = None
    parts: Mapping[str, Number | None] = field(default_factory=dict)
    fault: str | None = None
    solution: str | None = None
    skipped: Count = 0


@dataclass(frozen=True)
class Tally:
    """Counts of the items that a generation drew, such as prompts or pairs.

    Attributes:
        what: Name of the items, in the plural.
        count: All items.
        unscored: Items without any score: the reward failed, or does not apply.
        equal: Items whose completions all scored equal.
        wrong: Items without a correct completion, where a reward says what is correct.
        same: Items whose completions are all the same text.
        parted: Items whose tokens do not begin with all that a model reads before an answer.
        endless: Items with an answer that ends in nothing that ends a completion.
    """

    what: Name
    count: Count
    unscored: Count = 0
    equal: Count = 0
    wrong: Count = 0
    same: Count = 0
    parted: Count = 0
    endless: Count = 0

    def __str__(self) -> str:
        texts = {
            "scored equal": self.equal,
            "had no score": self.unscored,
            "had no correct completion": self.wrong,
            "had the same completion every time": self.same,
        }
        parts = [f"{number} {text}" for text, number in texts.items() if number]
        return (
            f"of {self.count} {self.what} {', '.join(parts)}" if parts else f"{self.count} {self.what} were drawn"
        )


@dataclass(frozen=True, kw_only=True)
class PreparedRows:
    """Fields read from ``dataset.json``: rows of each split, their kind, and warnings."""

    rows: dict[str, Count]
    conversational: bool = False
    warnings: list[Note] = field(default_factory=list)

    def __str__(self) -> str:
        """Describe the numbers in words."""
        return ", ".join(f"{number:,} {split}" for split, number in self.rows.items()) + " rows"


@dataclass(frozen=True, kw_only=True)
class Tokenized:
    """Field read from ``prompts.json``: a note on the prompts for readers of the results."""

    note: Note | None = None


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Numbers in ``generation.json`` of what a stage has drawn."""

    prompts: Count
    completions: Count
    tokens: Count
    tally: Tally | None = None


Share = Annotated[float, Meta(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Quality of a value model on prompts that it was not trained on.

    Its prediction at a supervised token is the mean of the label that it expects; tokens count alike.

    Attributes:
        prompts: Prompts that were held out.
        tokens: Supervised tokens of their sequences.
        base_rate: Mean of their labels: what a model that knows nothing says everywhere.
        auc: Chance that a token labelled 1 is predicted higher than one labelled 0, ties counting half; None where
            labels are not 0 and 1, or only one of the two.
        auc_se: Standard error of `auc`, by prompts; None where fewer than five have one of the labels.
        brier: Mean squared error of the predictions; None of all figures where one is no number, as those of a
            model whose training has diverged.
        brier_skill: 1 - brier / that of the base rate; None where all labels are equal.
        ece: Expected calibration error: mean distance of prediction and label over ten bins of equal width.
    """

    prompts: Count
    tokens: Count
    base_rate: Share
    auc: Share | None = None
    auc_se: Annotated[float, Meta(ge=0, le=LARGEST)] | None = None
    brier: Share | None = None
    brier_skill: Number | None = None
    ece: Share | None = None


@dataclass(frozen=True, kw_only=True)
class Training:
    """Fields read from ``training.json``: a note for readers of the results, and the calibration."""

    note: Note | None = None
    calibration: Calibration | None = None


@dataclass(frozen=True, kw_only=True)
class ScoresOf:
    """Raw scores of one reward model on the completions that it judged, and its fit.

    Attributes:
        mean: Mean of the scores.
        deviation: Standard deviation of the scores.
        pairs: Pairs that the model was fitted to; None where this is not told.
        held_out_pairs: Pairs that it was not fitted to; None likewise.
        held_out_accuracy: Share of the held-out pairs that it orders as they are; None where there are none.
    """

    mean: Number = 0.0
    deviation: Number = 1.0
    pairs: Count | None = None
    held_out_pairs: Count | None = None
    held_out_accuracy: Number | None = None


@dataclass(frozen=True, kw_only=True)
class RewardFit(Training):
    """Fields read from ``reward.json``.

    Attributes:
        tokens_trained: Tokens that all reward models were trained on.
        folds: Number of reward models.
        held_out_pairs: Pairs decided by a model that was not fitted to them.
        held_out_accuracy: Share of these that it orders as they are; None where there are none.
        fits: Scores of the models, in the order of their folds.
    """

    tokens_trained: Count
    folds: Count = 1
    held_out_pairs: Count = 0
    held_out_accuracy: Number | None = None
    fits: list[ScoresOf] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Faults:
    """``faults.json``: completions at which a reward failed, in the output of a job that scored any such.

    Attributes:
        completions: Completions that the job has scored.
        failed: Completions without a score, because a reward failed.
        first: Description of the first failure.
    """

    completions: Count
    failed: Count
    first: Note


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Entry of a reward in ``asked.json``: replies of a judge behind an endpoint, on which a job's scores rest.

    Attributes:
        model: Model that was asked for.
        replies: Id of a request -> endpoint's name of the model that replied, and its count of the tokens of the
            prompt and of the reply. A request is sent once, also if several calls or jobs need the reply.
        price: Price of a million tokens of prompts and of replies; empty if none was set.
    """

    model: str
    replies: dict[str, tuple[str, Count, Count]]
    price: list[Number] = field(default_factory=list)

    @property
    def models(self) -> dict[str, int]:
        """Name of a model that replied -> replies."""
        return dict(Counter(model for model, _, _ in self.replies.values()))

    @property
    def read(self) -> int:
        """Tokens of the prompts."""
        return sum(read for _, read, _ in self.replies.values())

    @property
    def written(self) -> int:
        """Tokens of the replies."""
        return sum(written for _, _, written in self.replies.values())

    @property
    def cost(self) -> float | None:
        """Cost of the requests; None without a price."""
        return (self.read * self.price[0] + self.written * self.price[1]) / 1e6 if self.price else None

    def __add__(self, other: Self) -> Self:
        """Put the replies of two together, those to the same request once."""
        return replace(self, replies=self.replies | other.replies)


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """``model.json``: where the reference's model is, if it is not in the output itself.

    Attributes:
        path: Folder of the model.
        hub: Otherwise its id on the hub,
        commit: and the commit there.
    """

    path: str | None = None
    hub: str | None = None
    commit: str | None = None

    def __post_init__(self) -> None:
        if self.path is None and (self.hub is None or self.commit is None):
            raise ValueError("expected `path`, or `hub` and `commit`")


# -- reading -----------------------------------------------------------------------------------------------------
# Reading the files of a stored output, each by its type; one that holds something else is an error.


_LINE = 16 << 20
"""Bytes that a line of ``samples.jsonl`` has at most."""
_SHOWN = 64 << 20
"""Bytes of the samples beside metrics: they are for people, and those of all chains come together in one file."""
_T = TypeVar("_T")


def read_metrics(output: Path) -> Metrics:
    """Read the ``metrics.json`` of an output.

    Raises:
        ForeignDataError: It holds something else.
        OSError: It is not there, or cannot be read.
    """
    return read_json_file(output / METRICS, Metrics)


def read_shown_samples(output: Path) -> list[dict[str, Any]]:
    """Read the ``samples.jsonl`` beside metrics: any objects, for people.

    Raises:
        ForeignDataError: It holds something else.
        OSError: It is not there, or cannot be read.
    """
    lines = read_plain(output / SAMPLES, _SHOWN).splitlines(keepends=True)
    return list(_objects(lines, partial(read_json, kind=dict[str, Any])))


def read_lines(path: Path, kind: type[_T]) -> Iterator[_T]:
    """Read a file of JSON lines as objects of a type, one by one. Empty lines are passed over.

    Raises:
        ForeignDataError: A line is of another type; says which.
        OSError: The file is not there, or cannot be read.
    """
    with open_plain(path) as file:
        yield from _objects(iter(lambda: file.readline(_LINE + 1), b""), partial(read_json, kind=kind))


def count_lines(path: Path) -> int:
    """Count the lines of a file, of whatever type.

    Raises:
        ForeignDataError: It is no plain file.
        OSError: The file is not there, or cannot be read.
    """
    with open_plain(path) as file:
        return sum(part.count(b"\n") for part in iter(lambda: file.read(1 << 20), b""))


def _objects(lines: Iterable[bytes], read: Callable[[bytes], _T]) -> Iterator[_T]:
    for number, line in enumerate(lines, 1):
        if len(line) > _LINE:
            raise ForeignDataError(f"line {number}: it is longer than {_LINE:,} bytes")
        if line.strip():
            try:
                item = read(line)
            except ForeignDataError as error:
                raise ForeignDataError(f"line {number}: {error}") from error
            yield item


def read_input(output: Path, name: str, read: Callable[[Path], _T]) -> _T:
    """Read a file of an output that this job reads.

    Args:
        output: Folder of the stored output.
        name: The file.
        read: Reads it.

    Raises:
        JobError: It is not there or not as it must be; says which job wrote it.
    """
    try:
        return read(output / name)
    except (ForeignDataError, OSError) as error:
        raise JobError(
            f"{name} in the output of {job_of(output)} ({output}) cannot be used: {problem_in_words(error)}. "
            f"What it must hold: {PAGE}"
        ) from error


# Each raises as `read_metrics` does.
read_generation = partial(read_json_file, kind=Generation)
read_training = partial(read_json_file, kind=Training)
read_reward_fit = partial(read_json_file, kind=RewardFit)
read_prepared_rows = partial(read_json_file, kind=PreparedRows)
read_tokenized = partial(read_json_file, kind=Tokenized)
read_faults = partial(read_json_file, kind=Faults)
read_asked = partial(read_json_file, kind=dict[str, Asked])
read_pointer = partial(read_json_file, kind=Pointer)


def problem_in_words(error: ForeignDataError | OSError) -> str:
    """Say what is wrong with a file that could not be read."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


# -- curves ------------------------------------------------------------------------------------------------------
# The curves of trainings: ``metrics.jsonl`` in the output of a job that trains, a step on every line. What
# stands there follows from the job's key alone, so nothing of time or machine is in it: how long things took
# is in the journal of the run. Nothing that decides a result reads it, and outputs of older versions
# have none.


CURVES = "metrics.jsonl"
MAX_STEPS = 500
"""Steps of a training that are kept, besides the first and the last."""
_DIGITS = 6
"""Digits of a stored number: more than any reader needs, and a third of the file."""

_Step = Annotated[int, Meta(ge=1, le=2**53)]
_Extra = Annotated[dict[Name, Number | None], Meta(max_length=50)]


@dataclass(frozen=True, kw_only=True)
class TrainingStep:
    """One optimizer step of a training: a line of ``metrics.jsonl``.

    Attributes:
        training: Name among the job's trainings, as ``policy``, ``value``, ``reference``, ``reward_model``.
        step: Number of the step, from 1.
        steps: Steps of the training.
        tokens: Tokens of prompts and completions trained on so far.
        loss: Loss of the step's batch; None if not finite, as of a training that has diverged.
        grad_norm: Norm of the gradient before it is clipped; None likewise.
        learning_rate: Learning rate of the step; the head of a value model may have another one.
        extra: Further numbers of the method, as ``accuracy`` or ``kl``; in the file beside the others.
    """

    training: Name
    step: _Step
    steps: _Step
    tokens: Count
    loss: Number | None
    grad_norm: Number | None
    learning_rate: Number
    extra: _Extra = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_names(self.training, *self.extra)
        if self.step > self.steps:
            raise ValueError(f"expected `step` <= `steps`, got {self.step} and {self.steps}")


FIELDS = tuple(name for name in TrainingStep.__dataclass_fields__ if name != "extra")
"""Fields of every line."""


def is_kept(step: int, steps: int) -> bool:
    """Return whether a step (from 1) has a line: the first, the last, and up to `MAX_STEPS` at equal distances."""
    return step in (1, steps) or step % math.ceil(steps / MAX_STEPS) == 0


def kept_number(value: float) -> float | None:
    """Return a number for a line; None if it is not finite, or too large."""
    return float(f"{value:.{_DIGITS}g}") if abs(value) <= LARGEST else None


def write_curve(folder: Path, rows: Iterable[TrainingStep]) -> None:
    """Add the steps of a training to those of the trainings before it, if there are any.

    Raises:
        OSError: They cannot be written.
    """
    with (folder / CURVES).open("a", encoding="utf-8", newline="") as file:
        file.writelines(json_text(_line(row)) + "\n" for row in rows)


def read_curve(folder: Path) -> list[TrainingStep]:
    """Read the steps of all trainings of an output; none where it has no curves.

    Raises:
        ForeignDataError: They are not as they must be; says in which line.
        OSError: They cannot be read.
    """
    last: dict[str, int] = {}

    def row(line: bytes) -> TrainingStep:
        step = _row(line)
        if step.step <= (before := last.get(step.training, 0)):
            raise ForeignDataError(f"expected a `step` of {step.training!r} after {before}, got {step.step}")
        last[step.training] = step.step
        return step

    try:
        return list(_objects(read_plain(folder / CURVES).splitlines(), row))
    except FileNotFoundError:
        return []


def _line(row: TrainingStep) -> dict[str, Any]:
    return {**{name: getattr(row, name) for name in FIELDS}, **row.extra}


def _row(line: bytes) -> TrainingStep:
    fields: dict[str, Any] = read_json(line, dict[str, Any])
    extra = converted({name: value for name, value in fields.items() if name not in FIELDS}, _Extra)
    return converted({**{name: fields[name] for name in FIELDS if name in fields}, "extra": extra}, TrainingStep)


def by_training(rows: Iterable[TrainingStep]) -> Mapping[str, list[TrainingStep]]:
    """Group steps by training, in the order in which trainings begin."""
    steps: dict[str, list[TrainingStep]] = {}
    for row in rows:
        steps.setdefault(row.training, []).append(row)
    return steps


# -- guidance ----------------------------------------------------------------------------------------------------
# How a trained model is used: what is saved with it, so that nothing of it has to be remembered.
#
#     guidance.json   beside a value model: by which rule, how strongly and over which tokens its values guide
#     usage.json      in the folder of an exported model: how texts were drawn and prompts made, its reference
#
# A value model is used together with the reference that it was trained for. In the store ``guidance.json`` names
# it by its key; an exported folder holds it, or names it on the hub.


GUIDANCE = "guidance.json"
USAGE = "usage.json"
LARGEST_ATOMS = 10_000

Positive = Annotated[float, Meta(gt=0, le=LARGEST)]
AtLeastOne = Annotated[int, Meta(ge=1, le=2**53)]
_KEY = r"^[0-9a-f]{40}\Z"
Key = Annotated[str, Meta(pattern=_KEY)]
Rule = Literal["preference", "bernoulli", "atoms", "expected", "expected_atoms"]
"""Rules that make offsets of value logits, in `learning.generation.sampling`."""


@dataclass(frozen=True, kw_only=True)
class OffsetRule:
    """Rule by which value logits become offsets to the reference's log-probabilities, at any strength.

    Attributes:
        rule: Name of the rule.
        rewards: Support of the head's distribution, lowest first; of no meaning for ``preference``.
    """

    rule: Rule
    rewards: Annotated[Sequence[Number], Meta(min_length=2, max_length=LARGEST_ATOMS)] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if list(self.rewards) != sorted(set(self.rewards)):
            raise ValueError(f"expected `rewards` from low to high, got {list(self.rewards)[:5]}")
        if self.rule in ("bernoulli", "expected") and len(self.rewards) != 2:
            raise ValueError(f"expected two `rewards` for {self.rule}, got {len(self.rewards)}")


@dataclass(frozen=True, kw_only=True)
class GuidanceSettings:
    """Content of ``guidance.json``. The type of the head is in ``value_head.json``, with the head.

    Attributes:
        algo: The method, or its name in the run.
        eta: Strength: the tilt is exp(value / eta). None for no guidance, the reference as it is.
        offset: Rule that makes offsets of values; None for a method with its own.
        top_k: Candidates at each step, the likeliest tokens of the reference.
        min_p: Tokens that the reference gives less than this are no candidates.
        others: Treatment of tokens that are no candidates.
        reference: Key of the stored output that is the reference, or says where it is.
    """

    algo: Name
    eta: Positive | None
    offset: OffsetRule | None
    top_k: AtLeastOne
    min_p: Annotated[float, Meta(ge=0, lt=1)]
    others: Annotated[str, Meta(pattern=r"^(kept|offset_zero|dropped)\Z")]
    reference: Key | None = None


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The distribution that tokens are drawn from. It goes whole from the settings to the decoder.

    Attributes:
        temperature: Temperature of the policy, before guidance.
        top_p: Probability of the nucleus; 1 keeps everything.
    """

    temperature: Positive = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0

    @property
    def is_whole(self) -> bool:
        """Whether every token may be drawn."""
        return self.top_p >= 1.0

    def options(self) -> dict[str, float]:
        """Return these settings by name, which are those of transformers and vLLM, too."""
        return {each.name: getattr(self, each.name) for each in fields(Sampling)}


@dataclass(frozen=True, kw_only=True)
class Drawing(Sampling):
    """Settings with which texts are drawn.

    Attributes:
        max_new_tokens: Most new tokens of a completion.
        stop: Texts that end a completion, besides the ends of the model.
        batch_size: Most sequences at once.
        skip_special_tokens: Leave special tokens out of texts; else begins, ends and padding alone.
        truncate_prompts: Keep the last tokens of a prompt that is too long, rather than refuse it.
        dtype: Type in which the models compute.
        attention: Attention implementation, by its name in transformers.
    """

    max_new_tokens: AtLeastOne = 64
    stop: list[Annotated[str, Meta(min_length=1)]] = field(default_factory=list)
    batch_size: AtLeastOne = 256
    skip_special_tokens: bool = True
    truncate_prompts: bool = False
    dtype: Annotated[str, Meta(pattern=r"^(float32|bfloat16|float16)\Z")] = "float32"
    attention: Annotated[str, Meta(pattern=r"^(sdpa|eager|flash_attention_2)\Z")] = "sdpa"


@dataclass(frozen=True, kw_only=True)
class Prompting:
    """Settings by which a text becomes a prompt, as in the dataset.

    Attributes:
        chat: Whether the text is the user's turn of a conversation, to which the chat template is applied.
        system_prompt: First message of the conversation.
        prompt_template: Text around the prompt, with ``{prompt}`` in its place.
        chat_template_kwargs: Arguments of the chat template.
        date: Date for a template that asks the clock.
    """

    chat: bool = False
    system_prompt: str | None = None
    prompt_template: str | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    date: str | None = None


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Content of ``usage.json``.

    Attributes:
        kind: ``policy``, a language model by itself, or ``value``, which guides one.
        drawing: Settings with which its evaluation drew texts.
        prompting: Settings of its prompts.
        reference: Place of a value model's reference, a path within the folder or a commit on the hub; None
            for a policy.
        chain: Chain that trained it.
        round: Round after which it was taken.
    """

    kind: Literal["policy", "value"]
    drawing: Drawing
    prompting: Prompting
    reference: Pointer | None = None
    chain: str = ""
    round: int = 0


def is_key(name: str) -> bool:
    """Return whether a name is a key of the store, as the name of a stored output's folder."""
    return re.fullmatch(_KEY, name) is not None


def read_guidance(path: Path) -> GuidanceSettings:
    """Read a ``guidance.json``; in what was fetched from the hub files are links.

    Raises:
        ForeignDataError: It holds something else.
        OSError: It is not there, or cannot be read.
    """
    return read_json_file(path, GuidanceSettings, follow=True)


def read_usage(path: Path) -> Usage:
    """Read a ``usage.json``; raises as `read_guidance` does."""
    return read_json_file(path, Usage, follow=True)


# -- adapters ----------------------------------------------------------------------------------------------------
# A policy of which only adapters are stored: they, and what they belong to, in the output of its training.
#
#     policy_adapters.json                    the rounds whose adapters make it, and the reference
#     adapters/1/adapter_config.json          the adapters of round 1, as peft saves and loads them
#     adapters/1/adapter_model.safetensors
#     adapters/2/...
#
# The policy is the reference with all of them merged into it, one after the other. Those of earlier rounds are
# copies, so that no round needs the output of another one.


ADAPTERS = "policy_adapters.json"
FOLDER = "adapters"


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """Content of ``policy_adapters.json``.

    Attributes:
        rounds: Names of the folders of adapters, in the order in which they are merged.
        reference: Key of the stored output that is the reference, or says where it is.
    """

    rounds: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1, max_length=100_000)]
    reference: Key | None = None

    def __post_init__(self) -> None:
        if self.rounds != sorted(set(self.rounds)):
            raise ValueError(f"expected `rounds` in their order, got {self.rounds[:5]}")


def read_adapters(path: Path) -> Adapters:
    """Read a ``policy_adapters.json``.

    Raises:
        ForeignDataError: It holds something else.
        OSError: It is not there, or cannot be read.
    """
    return read_json_file(path, Adapters)


def adapter_folders(output: Path) -> list[Path]:
    """Return the folders of adapters that a policy consists of, in order; empty if all weights are stored.

    Raises:
        JobError: What says which these are cannot be read.
    """
    if not os.path.lexists(output / ADAPTERS):
        return []
    return [output / FOLDER / str(number) for number in read_input(output, ADAPTERS, read_adapters).rounds]
