"""Training speed beside TRL's own trainers: tokens per second, CPU seconds, peak memory, and losses step by step.

    python -m benchmarks.training
    python -m benchmarks.training --methods sft --micro-batch 4 --steps 8 --turns 7
    python -m benchmarks.training --settings padding_free=false group_by_length=true
    python -m benchmarks.training --device cuda --batch 32 --micro-batch 8
    python -m benchmarks.training --tiny                # a check that it runs; its numbers say nothing

The same model of random weights, the same token ids in the same batches, the same learning rate, AdamW, clipping
and number of loss tokens, in float32 (on a GPU with autocast in bfloat16) without gradient checkpointing. Ours
goes through the functions that stages train by (`fit` of `dpo_set` and so on), theirs is `Trainer.train` of
TRL's class. Both have the forward passes that the method needs besides training: DPO's reference, and GRPO's
reference and old log-probabilities. Nothing is generated: TRL is given the completions by its `rollout_func`.

Turns alternate in one process, ours and theirs, and ratios are of neighbouring turns: what else runs on the
machine slows both alike, and CPU seconds say what each has cost.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import gc
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait are not to count as work
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import numpy as np
import torch
from datasets import Dataset, disable_progress_bars
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.utils.data import SequentialSampler
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast, ProgressCallback
from transformers.trainer_callback import PrinterCallback
from trl.trainer import grpo_trainer
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from benchmarks.arguments import positive
from pipeline.config.schema import DType, Schedule, TrainingConfig
from pipeline.learning.algos import dpo, grpo
from pipeline.learning.algos.policy_config import Sampling
from pipeline.learning.choices import GRPOLoss, ScaleRewards
from pipeline.learning.training import loop
from pipeline.learning.training.grpo import (
    Samples,
    group_advantages,
    grpo_set,
    padded,
    supervised_columns,
)
from pipeline.learning.training.loop import Fitting, computing_in, fit, fit_sft
from pipeline.learning.training.preferences import dpo_set
from pipeline.learning.training.scoring import completion_logprobs, score_sequences, without_padding
from pipeline.learning.training.sequences import Sequences

METHODS = ("sft", "dpo", "grpo")
RATE, BETA, KL, GROUP = 1e-4, 0.1, 0.04, 4
TOLERANCE = 2e-4
"""By which losses of a step may differ, in nats: float32 sums in another order, and what steps make of them."""
TOLERANCE_BFLOAT16 = 2e-2
"""Likewise on a GPU, where autocast rounds each product to 8 bits."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What both train on.

    Attributes:
        method: One of `METHODS`.
        data: In whole groups; a completion begins where its sequence is supervised.
        group: Sequences that belong together.
        order: In which they are trained on.
        batch: Sequences of a step.
    """

    method: str
    data: Sequences
    group: int
    order: NDArray[np.int64]
    batch: int

    @property
    def tokens(self) -> int:
        """Of prompts and completions, without padding."""
        return int(self.data.lengths.sum())

    def rows(self) -> list[tuple[list[int], list[int], float]]:
        """Prompt, completion and label of each sequence, in the order in which they are trained on."""
        found = []
        for row in self.order:
            ids, start = self.data.ids[row, : self.data.lengths[row]].tolist(), int(self.data.starts[row])
            found.append((ids[:start], ids[start:], float(self.data.labels[row])))
        return found


@dataclass(frozen=True)
class Turn:
    """What a training took."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    losses: list[float]


@dataclass
class Bout:
    """All counted turns of one method."""

    load: Load
    turns: dict[str, list[Turn]] = field(default_factory=lambda: {"ours": [], "TRL": []})

    def median(self, whose: str, what: str) -> float:
        """Of the turns of one side."""
        return float(statistics.median(getattr(turn, what) for turn in self.turns[whose]))

    def ratio(self, what: str) -> float:
        """How many times as fast ours is, the median over neighbouring turns."""
        pairs = zip(self.turns["ours"], self.turns["TRL"], strict=True)
        return float(statistics.median(getattr(theirs, what) / getattr(ours, what) for ours, theirs in pairs))

    def apart(self) -> float:
        """By how much losses of a step differ at most."""
        ours, theirs = self.turns["ours"][0].losses, self.turns["TRL"][0].losses
        return max(abs(one - other) for one, other in zip(ours, theirs, strict=True))


def drawn(method: str, args: argparse.Namespace) -> Load:
    """Random token ids of mixed lengths."""
    numbers, group = np.random.default_rng(0), {"sft": 1, "dpo": 2, "grpo": GROUP}[method]
    count, (low, high) = args.steps * args.batch, args.lengths
    ids, starts, labels = [], [], []
    for row in range(count):
        if row % group == 0:
            lengths = numbers.integers(low, high, group, endpoint=True)
            prompt = numbers.integers(3, args.vocabulary, max(1, int(lengths.min()) // 4)).tolist()
        rest = int(lengths[row % group]) - len(prompt)
        ids.append([*prompt, *numbers.integers(3, args.vocabulary, rest).tolist()])
        starts.append(len(prompt))
        labels.append(float(numbers.random()))
    order = loop.grouped_order(count, group, 1, seed=0)
    return Load(method=method, data=Sequences.of(ids, starts, labels), group=group, order=order, batch=args.batch)


def model_of(args: argparse.Namespace) -> PreTrainedModel:
    """A Llama of 15 million parameters, most of them those of 32,000 tokens; tiny, of next to none."""
    width, layers, heads = (32, 2, 2) if args.tiny else (288, 6, 6)
    kind: Any = LlamaConfig  # which takes more than it says
    config = kind(
        vocab_size=args.vocabulary,
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


# -- ours ---------------------------------------------------------------------------------------------------------


def ours(load: Load, model: PreTrainedModel, args: argparse.Namespace) -> list[float]:
    """Train as stages do, what they compute of the reference included."""
    training = TrainingConfig(
        micro_batch_size=args.micro_batch,
        weight_decay=0.0,
        warmup_steps=0,
        schedule=Schedule.constant,
        **args.settings,
    )
    fitting = Fitting(
        batch_size=load.batch,
        epochs=1,
        learning_rate=RATE,
        training=training,
        seed=0,
        device=args.device,
        dtype=args.dtype,
    )
    if load.method == "sft":
        return fit_sft(model, load.data, fitting)
    if load.method == "dpo":
        held = _scored(load, model, training, args, lambda values: values.double().sum(-1))
        return fit(model, dpo_set(model, load.data, held, dpo.DPOConfig(beta=BETA), args.device), fitting)
    width = load.data.ids.shape[1]
    # Of the policy that drew the completions, and of the reference; here both are the model as it begins.
    old, anchor = (
        padded(supervised_columns(_scored(load, model, training, args, lambda values: values, width), load.data))
        for _ in range(2)
    )
    advantages = group_advantages(load.data.labels, GROUP, ScaleRewards.group)
    how: dict[str, Any] = {"num_generations": GROUP, "sampling": Sampling.round, "use_bias_correction_kl": False}
    algo, samples = grpo.GRPOConfig(loss_type=GRPOLoss.grpo, beta=KL, **how), Samples(load.data, old)
    return fit(model, grpo_set(model, samples, advantages, anchor, algo, args.device, longest=width), fitting)


def _scored(
    load: Load,
    model: PreTrainedModel,
    training: TrainingConfig,
    args: argparse.Namespace,
    of: Callable[..., Any],
    width: int | None = None,
) -> NDArray[np.float64]:
    with without_padding(model, training.padding_free), computing_in(args.dtype, args.device):
        return score_sequences(
            load.data,
            lambda batch: of(completion_logprobs(model, batch)),
            micro_batch_size=training.micro_batch_size,
            device=args.device,
            width=width,
        )


# -- TRL ---------------------------------------------------------------------------------------------------------


class _InOrder:
    """Takes rows in the order in which they are given."""

    def _get_train_sampler(self, dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(dataset if dataset is not None else self.train_dataset)  # type: ignore[attr-defined]


class _OrderedSFT(_InOrder, SFTTrainer):
    pass


class _OrderedDPO(_InOrder, DPOTrainer):
    def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        return dataset  # token ids already


def theirs(
    load: Load, model: PreTrainedModel, args: argparse.Namespace, folder: Path
) -> Callable[[], list[float]]:
    """Set up TRL's trainer; what is returned trains."""
    accumulated = load.batch // args.micro_batch
    common: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": args.device == "cpu",
        "bf16": args.dtype is DType.bfloat16,
        "report_to": "none",
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "max_steps": args.steps,
        "gradient_accumulation_steps": accumulated,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "seed": 0,
    }
    trainer = {"sft": _sft, "dpo": _dpo, "grpo": _grpo}[load.method](load, model, args, common)
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)

    def train() -> list[float]:
        trainer.train()
        return [row["loss"] for row in trainer.state.log_history if "loss" in row]

    return train


def _sft(load: Load, model: PreTrainedModel, args: argparse.Namespace, common: dict[str, Any]) -> Any:
    rows = [
        {"input_ids": [*prompt, *rest], "labels": [-100] * len(prompt) + rest} for prompt, rest, _ in load.rows()
    ]
    how = SFTConfig(
        **common,
        per_device_train_batch_size=args.micro_batch,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    return _OrderedSFT(model, args=how, train_dataset=Dataset.from_list(rows), processing_class=_tokenizer())


def _dpo(load: Load, model: PreTrainedModel, args: argparse.Namespace, common: dict[str, Any]) -> Any:
    rows = load.rows()
    pairs = [
        {"prompt_ids": chosen[0], "chosen_ids": chosen[1], "rejected_ids": rejected[1]}
        for chosen, rejected in zip(rows[0::2], rows[1::2], strict=True)
    ]
    how = DPOConfig(**common, per_device_train_batch_size=args.micro_batch // 2, max_length=None, beta=BETA)
    data = Dataset.from_list(pairs)
    return _OrderedDPO(model, copy.deepcopy(model), args=how, train_dataset=data, processing_class=_tokenizer())


def _grpo(load: Load, model: PreTrainedModel, args: argparse.Namespace, common: dict[str, Any]) -> Any:
    rows = load.rows()

    def rollout(prompts: list[str], _: Any) -> dict[str, Any]:
        taken = [row for prompt in dict.fromkeys(prompts) for row in rows[int(prompt) : int(prompt) + GROUP]]
        assert len(taken) == len(prompts)
        return {
            "prompt_ids": [row[0] for row in taken],
            "completion_ids": [row[1] for row in taken],
            "logprobs": None,
            "reward": [row[2] for row in taken],
        }

    def reward(reward: list[float | None], **_: Any) -> list[float | None]:
        return reward

    how = GRPOConfig(
        **common,
        per_device_train_batch_size=args.micro_batch,
        num_generations=GROUP,
        # As in a round of ours: all completions are drawn before the first step.
        steps_per_generation=args.steps * common["gradient_accumulation_steps"],
        max_completion_length=int(load.data.lengths.max()),
        shuffle_dataset=False,
        loss_type="grpo",
        beta=KL,
        epsilon=0.2,
        scale_rewards="group",
        temperature=1.0,
    )
    asked = Dataset.from_list([{"prompt": str(row)} for row in range(0, len(rows), GROUP)])
    # It deals the rows of all its steps anew, which would be other batches than ours.
    vars(grpo_trainer)["shuffle_sequence_dict"] = lambda batch: batch
    # It makes its reference from where the model was loaded from.
    folder = str(Path(common["output_dir"]) / "model")
    model.save_pretrained(folder)
    model.config._name_or_path = folder
    return GRPOTrainer(
        model, reward, args=how, train_dataset=asked, processing_class=_tokenizer(), rollout_func=rollout
    )


def _tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({"<pad>": 0, "<bos>": 1, "<eos>": 2, "<unk>": 3}, unk_token="<unk>"))
    made: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=words, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )
    return made


# -- turns --------------------------------------------------------------------------------------------------------


def timed(train: Callable[[], list[float]]) -> Turn:
    """Do a training, and look at what it takes."""
    _forget_peak()
    wall, cpu = time.perf_counter(), time.process_time()
    losses = train()
    return Turn(time.perf_counter() - wall, time.process_time() - cpu, _peak_mb(), losses)


def _forget_peak() -> None:
    """Give back what turns before have left, and begin to look for the most anew (Linux)."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        pass


def _peak_mb() -> float:
    """The most memory since, of the GPU where one is used."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return float("nan")
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), float("nan"))


def bout(method: str, args: argparse.Namespace, console: Console) -> Bout:
    """Let both train in turn."""
    found, begin = Bout(drawn(method, args)), model_of(args)
    for number in range(1 - args.warm_up, args.turns + 1):
        for whose in ("ours", "TRL"):
            model = copy.deepcopy(begin).to(args.device)
            with tempfile.TemporaryDirectory() as folder:
                if whose == "ours":
                    turn = timed(lambda: ours(found.load, model, args))  # noqa: B023 - called at once
                else:
                    turn = timed(theirs(found.load, model, args, Path(folder)))
            if number > 0:
                found.turns[whose].append(turn)
                console.print(
                    f"{method} {number} {whose}: {turn.wall_s:.2f} s, {turn.cpu_s:.2f} CPU s, "
                    f"{turn.peak_mb:.0f} MB",
                    highlight=False,
                )
    return found


def table(bouts: Sequence[Bout], args: argparse.Namespace) -> Table:
    """What came out, ratios as how many times as fast ours is."""
    shown = Table(title=f"{args.steps} steps of {args.batch} sequences, {args.micro_batch} at once")
    heads = "", "tokens/s", "CPU s", "peak MB", "last loss"
    for head in (*heads, "TRL / ours: wall", "CPU", "peak", "losses apart"):
        shown.add_column(head, justify="right")
    for one in bouts:
        for whose in ("ours", "TRL"):
            cells = [
                f"{one.load.method}, {whose}",
                f"{one.load.tokens / one.median(whose, 'wall_s'):,.0f}",
                f"{one.median(whose, 'cpu_s'):.2f}",
                f"{one.median(whose, 'peak_mb'):,.0f}",
                f"{one.turns[whose][0].losses[-1]:.5f}",
            ]
            if whose == "ours":
                cells += [f"{one.ratio(what):.2f}" for what in ("wall_s", "cpu_s", "peak_mb")]
                cells.append(f"{one.apart():.1e}")
            shown.add_row(*cells)
    return shown


def main(given: Sequence[str] | None = None) -> list[Bout]:
    """Compare, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--steps", type=positive, default=4, help="optimizer steps of a turn")
    parser.add_argument("--batch", type=positive, default=16, help="sequences of a step")
    parser.add_argument("--micro-batch", type=positive, default=16, help="of these at once")
    parser.add_argument("--lengths", type=positive, nargs=2, default=(20, 300), metavar=("LEAST", "MOST"))
    parser.add_argument("--turns", type=positive, default=5, help="of each side")
    parser.add_argument("--warm-up", type=int, default=1, help="turns before, that are not counted")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("--settings", nargs="*", default=["padding_free=true"], help="of `training`, for ours")
    parser.add_argument("--tiny", action="store_true", help="shapes so small that they say nothing")
    args = parser.parse_args(given)
    args.settings = {name: said == "true" for name, _, said in (one.partition("=") for one in args.settings)}
    args.dtype = DType.bfloat16 if args.device == "cuda" else DType.float32
    args.vocabulary = 64 if args.tiny else 32_000
    torch.set_num_threads(args.threads)
    disable_progress_bars()
    warnings.simplefilter("ignore")
    console = Console(width=140)
    found = [bout(method, args, console) for method in args.methods]
    console.print(table(found, args))
    tolerance = TOLERANCE if args.device == "cpu" else TOLERANCE_BFLOAT16
    far = [one.load.method for one in found if one.apart() > tolerance]
    if far:
        console.print(
            f"[red]losses of {', '.join(far)} are more than {tolerance} apart: not the same is compared[/]"
        )
    return found


if __name__ == "__main__":
    main()
