"""The files of an output that someone reads back: what they are called, and what they hold.

A stage of the user's own may write any of them, so they are foreign. `check_output` holds every output to these
formats before it is committed: a wrong file fails the job that wrote it, and nothing of it is stored. A stored one
is read by the same types (`reading`), since an older version may have committed it without a look.
docs/extending.md has them for users.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

METRICS, SAMPLES, TRAINING = "metrics.json", "samples.jsonl", "training.json"
GENERATION, REWARD, POINTER = "generation.json", "reward.json", "model.json"
DATASET = "dataset.json"
FAULTS = "faults.json"
TOKENIZED = "prompts.json"
PROMPTS = "prompts.safetensors"
OPTIMIZER = "optimizer.safetensors"
"""What a training leaves of its optimizer for one that goes on from it, as large as the weights twice over."""
GREEDY = "greedy"
"""Folder of the samples of the greedy reference, in the output of its evaluation."""
ETA = "eta="
"""What names of strengths of guidance begin with: of folders in the output of a sweep, and in those of metrics."""
ANSWERING = ("decoding", "guidance")
"""What FLOPs of an evaluation go into answers, and not into measuring them."""
SWEEP_SPLIT = "validation"
"""Prompts that strengths of guidance are tried on."""
PAGE = "docs/extending.md#results"

LARGEST = 1e100
"""Far beyond every figure, and sums of such numbers stay numbers."""
Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Note = Annotated[str, Meta(max_length=2000)]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A row of ``metrics.json``: one measured number with its interval.

    Attributes:
        metric: Its name, which no other row has.
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
        if not self.metric.isprintable() or self.metric != self.metric.strip():
            raise ValueError(
                f"expected a name that can be printed, without blanks around it, got {self.metric[:40]!a}"
            )
        if self.ci_low is not None and self.ci_high is not None and self.ci_low > self.ci_high:
            raise ValueError(f"expected `ci_low` <= `ci_high`, got {self.ci_low} and {self.ci_high}")


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """What ``metrics.json`` holds.

    Attributes:
        rows: In any order.
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
        reward: Of the completion; None where the reward did not apply.
        correct: Whether the reward says that it is right; None where no reward can say so.
        kl: KL divergence of the policy from the reference over the completion, in nats; None where it is no finite
            number, as of a policy whose training has diverged.
        truncated: Whether it was cut off at the token limit.
        answer: What it votes for in maj@k; None for no vote.
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
    """What became of the things that a generation drew.

    Attributes:
        what: What is counted, in the plural.
        count: How many there are.
        unscored: Those without any score: the reward failed, or does not apply.
        equal: Those whose completions all scored equal.
        wrong: Those without a correct completion, where a reward says what is correct.
        same: Those whose completions are all the same text.
        parted: Those whose tokens do not begin with all that a model reads where an answer is due.
        endless: Those with an answer that ends in nothing that ends a completion.
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
        said = {
            "scored equal": self.equal,
            "had no score": self.unscored,
            "had no correct completion": self.wrong,
            "had the same completion every time": self.same,
        }
        parts = [f"{number} {text}" for text, number in said.items() if number]
        return (
            f"of {self.count} {self.what} {', '.join(parts)}" if parts else f"{self.count} {self.what} were drawn"
        )


@dataclass(frozen=True, kw_only=True)
class PreparedRows:
    """What is read of ``dataset.json``: rows of each split, their kind, and what they are short of."""

    rows: dict[str, Count]
    conversational: bool = False
    warnings: list[Note] = field(default_factory=list)

    def __str__(self) -> str:
        """Their numbers in words."""
        return ", ".join(f"{number:,} {split}" for split, number in self.rows.items()) + " rows"


@dataclass(frozen=True, kw_only=True)
class Tokenized:
    """What is read of ``prompts.json``: what a reader of the results must know of the prompts."""

    note: Note | None = None


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What ``generation.json`` says a stage has drawn."""

    prompts: Count
    completions: Count
    tokens: Count
    tally: Tally | None = None


Share = Annotated[float, Meta(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How good a value model is on prompts that it was not trained on.

    Its prediction at a supervised token is the mean of the label that it expects; tokens count alike.

    Attributes:
        prompts: Prompts that were held out.
        tokens: Supervised tokens of their sequences.
        base_rate: Mean of their labels: what a model that knows nothing says everywhere.
        auc: Chance that a token labelled 1 is predicted higher than one labelled 0, ties counting half; None where
            labels are not 0 and 1, or only one of the two.
        auc_se: Its standard error, prompts being what is drawn; None where fewer than five have one of the labels.
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
    """What is read of ``training.json``: what a reader of the results must know of the training."""

    note: Note | None = None
    calibration: Calibration | None = None


@dataclass(frozen=True, kw_only=True)
class ScoresOf:
    """Of one reward model: what its raw scores of the completions that it judged are like."""

    mean: Number = 0.0
    deviation: Number = 1.0


@dataclass(frozen=True, kw_only=True)
class RewardFit(Training):
    """What is read of ``reward.json``.

    Attributes:
        tokens_trained: Of all reward models.
        folds: How many there are.
        held_out_pairs: Pairs that were decided by a model that was not fitted to them.
        held_out_accuracy: Share of these that it decides as they are; None where there are none.
        fits: The models, in the order of their folds.
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
        completions: That the job has scored.
        failed: Those of them at which a reward failed, which therefore have no score.
        first: What was said of the first one.
    """

    completions: Count
    failed: Count
    first: Note


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """``model.json``: where the reference's model is, if it is not in the output itself.

    Attributes:
        path: Its folder.
        hub: Or its id on the hub,
        commit: and the commit there.
    """

    path: str | None = None
    hub: str | None = None
    commit: str | None = None

    def __post_init__(self) -> None:
        if self.path is None and (self.hub is None or self.commit is None):
            raise ValueError("expected `path`, or `hub` and `commit`")
