"""What TRL's own GRPOTrainer reaches on addition: it draws anew at every step, from the policy as it is then.

    python -m benchmarks.trl_grpo                          # as many completions as two rounds of the table draw
    python -m benchmarks.trl_grpo --completions 5120 --pairs 0:0

Each run starts from a reference that the main command trains, on the task's training prompts and by its reward,
and has a seed and a reference of its own, so that an interval over runs holds for other seeds and other
references. The rate is the default of `algos.GRPO`. Answers have four tokens, so pass@1 is the probability of
the right one and nothing is drawn for it; KL is summed over the tokens of drawn answers. Both are of 500 test
prompts, as in docs/results.md.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from pipeline import arithmetic

arithmetic.pin("numpy", "torch")  # trainings run in this process

import numpy as np
import torch
from datasets import Dataset as Rows
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.others import train, trained_by
from pipeline.config.schema import SystemConfig
from pipeline.learning.algos.grpo import GRPOConfig as OurConfig
from pipeline.learning.datasets.base import Dataset
from pipeline.learning.datasets.registry import load_dataset
from pipeline.learning.evaluation.crossed import Floats, known_spread
from pipeline.learning.evaluation.shares import share_interval
from pipeline.learning.models.load import load_policy, load_tokenizer

ANSWER = 4
"""Tokens of an answer."""
GROUP = 4
MARKS = (10_240, 20_480, 40_960, 80_000)
"""Completions drawn so far, after which the policy is evaluated."""
TEST_PROMPTS = 500
SAMPLES = 4
"""Of each test prompt, along which the divergence is summed."""


@dataclass(frozen=True)
class Measured:
    """A policy: the probability of the right answer by prompt, and nats per answer to its reference."""

    right: Floats
    kl: float


class TestPrompts:
    """Prompts and right answers as token ids, shape [prompts, tokens]."""

    def __init__(self, dataset: Dataset, tokenizer: PreTrainedTokenizerBase) -> None:
        rows = [dataset.row(int(row)) for row in dataset.ids("test")[:TEST_PROMPTS]]
        self.prompts = torch.tensor(tokenizer([str(row.prompt) for row in rows])["input_ids"])
        answers = [str(row.columns["solution"]) for row in rows]
        self.answers = torch.tensor(tokenizer(answers, add_special_tokens=False)["input_ids"])

    @torch.no_grad()
    def measure(self, policy: PreTrainedModel, reference: PreTrainedModel) -> Measured:
        """Evaluate a policy; every call draws the same way."""
        policy.train(mode=False)
        right = _token_logprobs(policy, self.prompts, self.answers)
        chosen = right.gather(2, self.answers[..., None]).squeeze(2).sum(1).exp()
        prompts = self.prompts.repeat_interleave(SAMPLES, 0)
        drawn = _draw(policy, prompts, torch.Generator().manual_seed(7))
        ours, theirs = (_token_logprobs(model, prompts, drawn) for model in (policy, reference))
        kl = (ours.exp() * (ours - theirs)).sum(-1).sum(1).mean()
        policy.train()
        return Measured(chosen.double().numpy(), float(kl))


def _token_logprobs(model: PreTrainedModel, prompts: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of all tokens at each place of the answers, shape [prompts, ANSWER, vocabulary]."""
    logits = model(torch.cat([prompts, answers], 1)).logits
    return torch.log_softmax(logits[:, prompts.shape[1] - 1 : -1].float(), -1)


def _draw(model: PreTrainedModel, prompts: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    ids = prompts
    for _ in range(ANSWER):
        probabilities = torch.softmax(model(ids).logits[:, -1].float(), -1)
        ids = torch.cat([ids, torch.multinomial(probabilities, 1, generator=generator)], 1)
    return ids[:, prompts.shape[1] :]


class _Evaluate(TrainerCallback):
    """Evaluates when as many completions have been drawn as a mark says."""

    def __init__(self, batch: int, marks: Sequence[int], measure: Callable[[Any], Measured]) -> None:
        self.found: list[Measured] = []
        self._batch, self._marks, self._measure = batch, list(marks), measure

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002 - as called
        if self._marks and state.global_step * self._batch >= self._marks[0]:
            self._marks.pop(0)
            self.found.append(self._measure(more["model"]))


def trl_run(
    folder: Path, dataset: Dataset, seed: int, marks: Sequence[int], args: argparse.Namespace
) -> list[Measured]:
    """Train by TRL's trainer from a reference; what the policy is at each mark."""
    tokenizer = load_tokenizer(folder)
    # The task's answers have no end, and TRL's trainer wants a token for it.
    tokenizer.eos_token, tokenizer.padding_side = tokenizer.bos_token, "left"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.bos_token
    policy, reference = (load_policy(folder, SystemConfig(), "cpu") for _ in range(2))
    policy.requires_grad_(True)
    reference.train(mode=False)
    assert policy.generation_config is not None
    policy.generation_config.eos_token_id = None
    prompts = TestPrompts(dataset, tokenizer)
    evaluate = _Evaluate(args.batch, marks, lambda model: prompts.measure(model, reference))
    with tempfile.TemporaryDirectory() as scratch:
        trainer = GRPOTrainer(
            model=policy,
            reward_funcs=_is_right,
            args=GRPOConfig(
                output_dir=scratch,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                per_device_train_batch_size=args.batch,
                steps_per_generation=1,
                num_generations=GROUP,
                max_completion_length=ANSWER,
                beta=args.beta,
                learning_rate=args.learning_rate,
                lr_scheduler_type="constant",
                warmup_steps=20,
                weight_decay=0.01,
                loss_type="grpo",
                max_steps=marks[-1] // args.batch,
                seed=seed,
                shuffle_dataset=False,
                logging_strategy="no",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=_training_rows(dataset, seed, marks[-1] // GROUP),
            processing_class=tokenizer,
            callbacks=[evaluate],
        )
        trainer.train()
    return evaluate.found


def _is_right(completions: list[str], solution: list[str], **_: Any) -> list[float | None]:
    return [float(given.strip() == right) for given, right in zip(completions, solution, strict=True)]


def _training_rows(dataset: Dataset, seed: int, count: int) -> Rows:
    ids = np.random.default_rng(seed).permutation(dataset.ids("train"))
    rows = [dataset.row(int(ids[at % len(ids)])) for at in range(count)]
    return Rows.from_dict(
        {"prompt": [row.prompt for row in rows], "solution": [row.columns["solution"] for row in rows]}
    )


def main() -> None:
    args = _arguments()
    marks = [mark for mark in MARKS if mark < args.completions] + [args.completions]
    args.references = sorted({reference for reference, _ in args.pairs})
    config = train(args, "trl_grpo", ["PITA"])
    dataset = load_dataset(config.datasets["addition"])
    folders = {trained.reference: trained.policy for trained in trained_by(config)}
    found: list[list[Measured]] = []
    for reference, seed in args.pairs:
        started = time.perf_counter()
        found.append(trl_run(folders[reference], dataset, seed, marks, args))
        figures = "  ".join(f"{one.right.mean():.3f}/{one.kl:.2f}" for one in found[-1])
        print(
            f"reference {reference}, seed {seed}: {figures}  [{time.perf_counter() - started:.0f} s]", flush=True
        )
    print("\n| completions | pass@1 | 95 % interval | by run | KL/seq |\n|---|---|---|---|---|")
    for mark, runs in zip(marks, zip(*found, strict=True), strict=True):
        print(_line(mark, runs), flush=True)


def _line(mark: int, runs: Sequence[Measured]) -> str:
    # Runs differ in seed and reference alike, so they are as many seeds of one.
    spread = known_spread(np.stack([run.right for run in runs])[None]) if len(runs) > 1 else None
    interval = "" if spread is None else "[{:.3f}, {:.3f}]".format(*map(float, share_interval(spread, 0.95)))
    each = " ".join(f"{run.right.mean():.3f}" for run in runs)
    mean, kl = np.mean([run.right.mean() for run in runs]), np.mean([run.kl for run in runs])
    return f"| {mark:,} | {mean:.3f} | {interval} | {each} | {kl:.2f} |"


def _pair(text: str) -> tuple[int, int]:
    reference, seed = text.split(":")
    return int(reference), int(seed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    default = [(0, 0), (1, 1), (2, 2)]
    parser.add_argument("--pairs", type=_pair, nargs="+", default=default, help="REFERENCE:SEED of each run")
    parser.add_argument("--completions", type=int, default=MARKS[-1], help="drawn in all")
    parser.add_argument("--batch", type=int, default=128, help="completions drawn for a step")
    parser.add_argument("--beta", type=float, default=0.01)
    parser.add_argument("--learning-rate", type=float, default=OurConfig().learning_rate)
    parser.add_argument("--steps", type=int, default=1500, help="of training a reference")
    # Of the value models, which nothing here asks for.
    parser.set_defaults(prompts_per_round=8)
    parser.add_argument("--out", type=Path, default=Path("outputs"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
