"""Learning curves of GRPO on addition, ours and those of TRL's own GRPOTrainer, at equal completions.

    python -m benchmarks.trl_grpo                          # five references: half an hour of one core
    python -m benchmarks.trl_grpo --references 0 --marks 2560

Both start from references that the main command trains, on the task's training prompts and by its reward, with
the same settings; each pair of trainings has a reference and a seed of its own, so that the interval of a
difference holds for others of both. Ours is the main command, whose rounds end at the marks. Answers have four
tokens, so pass@1 is the probability of the right one and nothing is drawn for it; KL is summed over the tokens of
drawn answers. Both are of 500 test prompts.
"""

from __future__ import annotations

import argparse
import json
import math
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
from scipy.stats import t as student
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.others import train
from pipeline.config.schema import Config, SystemConfig
from pipeline.engine.store.store import Store
from pipeline.learning.algos.grpo import GRPOConfig as GRPOSettings
from pipeline.learning.datasets.base import Dataset, load_dataset
from pipeline.learning.evaluation.statistics import Floats
from pipeline.learning.models.kinds import TinyModelConfig
from pipeline.learning.models.load import load_policy, load_tokenizer

ANSWER = 4
"""Tokens of an answer."""
MARKS = (2_560, 10_240, 81_920)
"""Completions drawn so far, after which the policy is evaluated."""
TEST_PROMPTS = 500
SAMPLES = 4
"""Of each test prompt, along which the divergence is summed."""


@dataclass(frozen=True)
class Measured:
    """A policy: the probability of the right answer by prompt, and nats per answer to its reference."""

    right: Floats
    kl: float


@dataclass(frozen=True)
class Curve:
    """A training: what the policy is at each mark, and seconds that drawing, scoring and training took."""

    at_marks: list[Measured]
    took_s: float


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
        self.took_s = 0.0
        self._batch, self._marks, self._measure = batch, list(marks), measure

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002 - as called
        if self._marks and state.global_step * self._batch >= self._marks[0]:
            self._marks.pop(0)
            started = time.perf_counter()
            self.found.append(self._measure(more["model"]))
            self.took_s += time.perf_counter() - started


def trl_run(folder: Path, prompts: TestPrompts, dataset: Dataset, seed: int, args: argparse.Namespace) -> Curve:
    """Train by TRL's trainer from a reference."""
    tokenizer = load_tokenizer(folder)
    # The task's answers have no end, and TRL's trainer wants a token for it.
    tokenizer.eos_token, tokenizer.padding_side = tokenizer.bos_token, "left"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.bos_token
    policy, reference = (load_policy(folder, SystemConfig(), "cpu") for _ in range(2))
    policy.requires_grad_(True)
    reference.train(mode=False)
    assert policy.generation_config is not None
    policy.generation_config.eos_token_id = None
    ours, marks = GRPOSettings(), args.marks
    evaluate = _Evaluate(ours.batch_size, marks, lambda model: prompts.measure(model, reference))
    with tempfile.TemporaryDirectory() as scratch:
        trainer = GRPOTrainer(
            model=policy,
            reward_funcs=_is_right,
            args=GRPOConfig(
                output_dir=scratch,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                per_device_train_batch_size=ours.batch_size,
                steps_per_generation=1,
                num_generations=ours.num_generations,
                max_completion_length=ANSWER,
                beta=ours.beta,
                learning_rate=ours.learning_rate,
                lr_scheduler_type="constant",
                weight_decay=0.01,
                loss_type=ours.loss_type.name,
                max_steps=marks[-1] // ours.batch_size,
                seed=seed,
                shuffle_dataset=False,
                logging_strategy="no",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=_training_rows(dataset, seed, marks[-1] // ours.num_generations),
            processing_class=tokenizer,
            callbacks=[evaluate],
        )
        started = time.perf_counter()
        trainer.train()
        return Curve(evaluate.found, time.perf_counter() - started - evaluate.took_s)


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
    ours: list[Curve] = []
    theirs: list[Curve] = []
    for reference in args.references:
        config = _run(args, reference)
        dataset = load_dataset(config.datasets["addition"])
        trained, seconds = _trained(config), _seconds(config)
        folder = trained[0]
        prompts = TestPrompts(dataset, load_tokenizer(folder))
        policies = [trained[mark // args.marks[0]] for mark in args.marks]
        start = load_policy(folder, SystemConfig(), "cpu")
        found = [prompts.measure(load_policy(policy, SystemConfig(), "cpu"), start) for policy in policies]
        ours.append(Curve(found, seconds))
        theirs.append(trl_run(folder, prompts, dataset, reference, args))
        for whose, curve in (("ours", ours[-1]), ("TRL", theirs[-1])):
            said = "  ".join(f"{one.right.mean():.3f}/{one.kl:.2f}" for one in curve.at_marks)
            speed = f"{args.marks[-1] / curve.took_s:,.0f} completions/s"
            print(f"reference {reference}, {whose}: {said}  [{speed}]", flush=True)
    print("\n| completions | ours | KL/seq | TRL | KL/seq | ours - TRL, 95 % interval |\n" + "|---" * 6 + "|")
    for at, mark in enumerate(args.marks):
        sides = [[curve.at_marks[at] for curve in curves] for curves in (ours, theirs)]
        print(_line(mark, *sides), flush=True)


def _run(args: argparse.Namespace, reference: int) -> Config:
    """Train a reference, and a policy from it, by the main command."""
    alone = argparse.Namespace(**{**vars(args), "references": [reference]})
    rounds = args.marks[-1] // args.marks[0]
    # Its draws are its own too, without a warm-up, and of every round the weights stay.
    own = (f"experiment.seeds=[{reference}]", "training.warmup_steps=0", "execution.keep=all")
    return train(alone, f"trl_grpo_{args.marks[0]}_{reference}", ["GRPO"], f"rounds_of_training={rounds}", *own)


def _trained(config: Config) -> list[Path]:
    """What trainings made: the reference, and the policy after each round."""
    store = Store(Path(config.output_dir).absolute() / ".store")
    plan = json.loads((Path(config.output_dir) / config.experiment.name / "latest" / "plan.json").read_text())
    trainings = [job for job in plan["jobs"] if job["stage"] == "train"]
    return [store.path(job["key"]) for job in sorted(trainings, key=lambda job: job["round"])]


def _seconds(config: Config) -> float:
    """What the trainings of the policy took."""
    latest = Path(config.output_dir) / config.experiment.name / "latest"
    rows = json.loads((latest / "compute.json").read_text())["rows"]
    return float(sum(row["device_s"] for row in rows if (row["algo"], row["stage"]) == ("GRPO", "train")))


def _line(mark: int, ours: Sequence[Measured], theirs: Sequence[Measured]) -> str:
    sides = [np.array([one.right.mean() for one in side]) for side in (ours, theirs)]
    apart, count = sides[0] - sides[1], len(ours)
    interval = ""
    if count > 1:  # of the same references on both sides
        reach = student.ppf(0.975, count - 1) * apart.std(ddof=1) / math.sqrt(count)
        interval = f" [{apart.mean() - reach:+.3f}, {apart.mean() + reach:+.3f}]"
    kl = [np.mean([one.kl for one in side]) for side in (ours, theirs)]
    cells = f"{sides[0].mean():.3f} | {kl[0]:.2f} | {sides[1].mean():.3f} | {kl[1]:.2f}"
    return f"| {mark:,} | {cells} | {apart.mean():+.3f}{interval} |"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--references", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="seeds of references")
    parser.add_argument("--marks", type=int, nargs="+", default=MARKS, help="completions; multiples of the first")
    parser.add_argument("--out", type=Path, default=Path("outputs"))
    args = parser.parse_args()
    args.steps = TinyModelConfig(kind="tiny").steps
    args.prompts_per_round = args.marks[0] // GRPOSettings().num_generations
    return args


if __name__ == "__main__":
    main()
