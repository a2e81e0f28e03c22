"""Metrics of evaluated samples, each with an interval clustered by prompt."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config.schema import EvaluationConfig
from pipeline.evaluation.statistics import ratio_estimate

FILE = "samples.jsonl"


@dataclass(frozen=True)
class Sample:
    """One evaluated completion.

    Attributes:
        row: Id of the dataset's row.
        sample: Index among the samples of the row.
        prompt: Text.
        completion: Text, without special tokens.
        tokens: Tokens of the completion, an end-of-text token included.
        reward: Of the completion; None where the reward did not apply.
        correct: Whether the reward says that it is right.
        kl: KL divergence of the policy from the reference over the completion, in nats.
        truncated: Whether it was cut off at the token limit.
    """

    row: int
    sample: int
    prompt: str
    completion: str
    tokens: int
    reward: float | None
    correct: bool
    kl: float
    truncated: bool


def write_samples(path: Path, samples: Iterable[Sample]) -> None:
    """Write samples as JSON lines."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(sample), ensure_ascii=False) + "\n" for sample in samples)


def read_samples(folders: Sequence[Path]) -> list[Sample]:
    """Read the samples of several folders, in their order."""
    return list(_read(folders))


def _read(folders: Sequence[Path]) -> Iterator[Sample]:
    for folder in folders:
        with (folder / FILE).open(encoding="utf-8") as file:
            yield from (Sample(**json.loads(line)) for line in file)


def metric_rows(samples: Sequence[Sample], settings: EvaluationConfig) -> list[dict[str, Any]]:
    """Rows for ``metrics.json``: metric, value, ci_low, ci_high, and n, the number of prompts it rests on.

    pass@1 is the share of correct samples, reward their mean reward, kl_per_sequence and kl_per_token the exact
    per-step divergence summed over a completion and divided by its tokens, length the mean number of tokens,
    truncated the share cut off at the limit.
    """
    ones = [1.0] * len(samples)
    rewarded = [sample.reward is not None for sample in samples]
    columns = {
        "pass@1": ([float(sample.correct) for sample in samples], ones),
        "reward": ([sample.reward or 0.0 for sample in samples], [float(given) for given in rewarded]),
        "kl_per_sequence": ([sample.kl for sample in samples], ones),
        "kl_per_token": ([sample.kl for sample in samples], [float(sample.tokens) for sample in samples]),
        "length": ([float(sample.tokens) for sample in samples], ones),
        "truncated": ([float(sample.truncated) for sample in samples], ones),
    }
    prompts = np.unique([sample.row for sample in samples], return_inverse=True)[1]
    return [_row(name, prompts, *column, settings) for name, column in columns.items()]


def _row(
    name: str,
    prompts: NDArray[np.intp],
    numerators: Sequence[float],
    denominators: Sequence[float],
    settings: EvaluationConfig,
) -> dict[str, Any]:
    counted = np.bincount(prompts, denominators).astype(np.float64)
    used = counted > 0
    row: dict[str, Any] = {"metric": name, "value": None, "ci_low": None, "ci_high": None, "n": int(used.sum())}
    if not used.any():
        return row
    estimate = ratio_estimate(
        np.bincount(prompts, numerators)[used].astype(np.float64),
        counted[used],
        samples=settings.bootstrap_samples,
        confidence=settings.confidence,
    )
    figures = {"value": estimate.value, "ci_low": estimate.low, "ci_high": estimate.high}
    return {**row, **{figure: _rounded(number) for figure, number in figures.items()}}


def _rounded(number: float) -> float | None:
    """Ten significant digits: more than any interval resolves, fewer than rounding errors reach."""
    return float(f"{number:.10g}") if math.isfinite(number) else None


def shown_samples(samples: Sequence[Sample], prompts: int) -> list[dict[str, Any]]:
    """The first prompts with all of their completions, for people to read."""
    shown: dict[int, dict[str, Any]] = {}
    for sample in samples:
        if sample.row not in shown and len(shown) >= prompts:
            continue
        entry = shown.setdefault(sample.row, {"row": sample.row, "prompt": sample.prompt, "completions": []})
        entry["completions"].append(
            {"text": sample.completion, "reward": sample.reward, "correct": sample.correct}
        )
    return list(shown.values())
