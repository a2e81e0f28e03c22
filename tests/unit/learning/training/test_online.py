"""Training on what is drawn on the way: which batch comes when, and an optimizer that goes on."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor

from pipeline.config.schema import Optimizer, Schedule
from pipeline.errors import JobError, JobStopped
from pipeline.learning.algos import online
from pipeline.learning.algos.grpo import GRPOConfig
from pipeline.learning.choices import GRPOLoss, ImportanceSampling, ScaleRewards, VLLMCorrection
from pipeline.learning.training import checkpoint, grpo, loop
from pipeline.learning.training.scoring import completion_logprobs
from pipeline.learning.training.sequences import batch_of
from pipeline.outputs.formats import OPTIMIZER, read_curve
from tests.doubles.models import PLAINLY, fitting, samples_of, tiny_policy

numbers = st.integers(1, 12)


@pytest.mark.properties
@given(prompts=st.integers(1, 60), at_once=numbers, per_step=numbers, epochs=st.integers(1, 3))
def test_each_prompt_is_drawn_once_and_each_batch_gone_over_as_often_as_asked(
    prompts: int, at_once: int, per_step: int, epochs: int
) -> None:
    table = online.Timetable(prompts, at_once * per_step, per_step, epochs)
    count = math.ceil(table.prompts / table.at_once)
    rows = [table.rows(batch) for batch in range(count)]
    assert [row for start, stop in rows for row in range(start, stop)] == list(range(prompts))
    found = [table.at(step) for step in range(table.steps)]
    expected = [(batch, within) for batch in range(count) for within in range(epochs * table.parts(batch))]
    assert found == expected
    assert table.drawn_after(table.steps) == prompts


def test_as_many_steps_as_trl_takes() -> None:
    """80,000 completions in groups of 4, 128 a step: ``max_steps=625``."""
    assert online.Timetable(20_000, 32, 32).steps == 625


def losses_of(model: torch.nn.Module):  # type: ignore[no-untyped-def]
    def of(step: int):  # type: ignore[no-untyped-def]
        ids = torch.from_numpy(np.random.default_rng(step).integers(0, 10, (4, 6)))
        yield model(input_ids=ids, labels=ids).loss

    return of


def how(kind: Optimizer = Optimizer.adamw, **given: Any) -> loop.Fitting:
    constant = Schedule.constant_with_warmup
    return fitting(optimizer=kind, weight_decay=0.1, warmup_steps=3, schedule=constant, **given)


@pytest.mark.parametrize("kind", Optimizer)
def test_two_trainings_of_which_one_goes_on_with_the_optimizer_of_the_other_are_one(
    kind: Optimizer, tmp_path: Path
) -> None:
    """And one that was stopped goes on from its checkpoint to the same bytes."""
    if kind is Optimizer.adamw_8bit:
        pytest.importorskip("bitsandbytes")  # on a CPU too, where it is for tests alone
    whole, parted, stopped = tiny_policy(width=64), tiny_policy(width=64), tiny_policy(width=64)
    expected = loop.train(whole, how(kind), 7, losses_of(whole))
    found = loop.train(parted, how(kind, leaves_to=tmp_path), 4, losses_of(parted))
    later = losses_of(parted)
    on = {"steps_before": 4, "goes_on_from": tmp_path}
    found += loop.train(parted, how(kind, **on), 3, lambda step: later(step + 4))
    assert found == expected
    assert all(map(torch.equal, whole.parameters(), parted.parameters()))

    calls = iter(range(9))
    stopping = checkpoint.Checkpoints(tmp_path / "kept", {}, stopping=lambda: next(calls) == 3)
    with pytest.raises(JobStopped):
        loop.train(stopped, how(kind, checkpoint=stopping), 7, losses_of(stopped))
    other = tiny_policy(seed=1, width=64)
    kept = checkpoint.Checkpoints(tmp_path / "kept", {})
    assert loop.train(other, how(kind, checkpoint=kept), 7, losses_of(other)) == expected
    assert all(map(torch.equal, whole.parameters(), other.parameters()))


def test_a_checkpoint_of_a_training_that_keeps_other_lists_is_passed_over(tmp_path: Path) -> None:
    calls = iter(range(9))
    stopping = checkpoint.Checkpoints(tmp_path, {}, stopping=lambda: next(calls) == 1)
    first, second = tiny_policy(), tiny_policy()
    with pytest.raises(JobStopped):
        loop.train(first, how(checkpoint=stopping), 3, losses_of(first), told={"tokens": [], "training": []})
    kept = checkpoint.Checkpoints(tmp_path, {})
    found = loop.train(second, how(checkpoint=kept), 3, losses_of(second), told={"tokens": [], "flops": []})
    assert (len(found), kept.saved_step) == (3, 0)


def test_muon_trains_the_matrices_of_hidden_layers_and_adamw_the_rest() -> None:
    """Each as by itself, from the same gradients."""
    model, same = tiny_policy(), tiny_policy()
    loop.train(model, how(Optimizer.muon), 3, losses_of(model))
    named = dict(same.named_parameters())
    hidden = [name for name, weight in named.items() if ".h." in name and weight.ndim == 2]
    rest = [weight for name, weight in named.items() if name not in hidden]
    assert len(hidden) == 4 * len(same.transformer.h)
    parts = [
        torch.optim.Muon([named[name] for name in hidden], weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, weight_decay=0.1, fused=True),
    ]
    for step in range(3):
        sum(losses_of(same)(step)).backward()
        torch.nn.utils.clip_grad_norm_(same.parameters(), 1.0)
        for part in parts:
            part.param_groups[0]["lr"] = loop.rate_at(step, how(), 3)
            part.step()
            part.zero_grad()
    assert all(map(torch.equal, model.parameters(), same.parameters()))


def test_an_optimizer_that_is_not_there_or_of_another_model_is_one_message(tmp_path: Path) -> None:
    model = tiny_policy()
    with pytest.raises(JobError, match="cannot go on with the optimizer"):
        loop.train(model, how(goes_on_from=tmp_path), 1, losses_of(model))
    loop.train(model, how(leaves_to=tmp_path), 1, losses_of(model))
    whole = (tmp_path / OPTIMIZER).read_bytes()
    (tmp_path / OPTIMIZER).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(JobError, match="cannot go on with the optimizer"):
        loop.train(model, how(goes_on_from=tmp_path), 1, losses_of(model))


def test_a_rate_falls_over_its_horizon_whatever_the_rounds(tmp_path: Path) -> None:
    def losses_of(step: int) -> Iterator[Tensor]:
        yield model(torch.ones(1)).sum()

    model, rates = torch.nn.Linear(1, 1), []
    falling = fitting(schedule=Schedule.cosine_from_start, horizon=8)
    for before in (0, 4):
        curve = loop.Curve(training=str(before), folder=tmp_path)
        loop.train(model, replace(falling, curve=curve, steps_before=before), 4, losses_of)
    rates = [row.learning_rate for row in read_curve(tmp_path)]
    assert rates == pytest.approx([loop.rate_at(step, falling, 8) for step in range(8)], rel=1e-5)
    assert loop.rate_at(8, falling, 8) == pytest.approx(0, abs=1e-12)


class Recorded:
    """What TRL's trainer has drawn, its losses and what became of the weights, over a few optimizer steps."""

    def __init__(self, folder: Path, is_rloo: bool, parts: int, **settings: Any) -> None:
        # Which other tests need not load.
        from datasets import Dataset
        from transformers import PreTrainedTokenizerFast
        from trl.trainer.grpo_config import GRPOConfig
        from trl.trainer.grpo_trainer import GRPOTrainer
        from trl.trainer.rloo_config import RLOOConfig
        from trl.trainer.rloo_trainer import RLOOTrainer

        spread: float | None = settings.pop("spread", None)
        base: Any = RLOOTrainer if is_rloo else GRPOTrainer
        kind: Any = RLOOConfig if is_rloo else GRPOConfig

        self.model = tiny_policy()
        self.start = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}
        self.batches: list[dict[str, Tensor]] = []
        self.completions: list[list[list[int]]] = []
        self.rewards: list[list[float]] = []
        self.losses: list[float] = []
        self.sampled: list[np.ndarray] = []
        self.told: list[dict[str, float]] = []
        recorded = self
        words = {str(number): number for number in range(10)}
        made = Tokenizer(WordLevel(words, unk_token="0"))
        made.pre_tokenizer = Whitespace()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="6", pad_token="8", unk_token="0")

        class Recording(base):
            def _generate_single_turn(self, prompts: Any, *rest: Any) -> Any:
                """Draw as ever, and say that vLLM did so, with somewhat different probabilities."""
                if spread is None:
                    return super()._generate_single_turn(prompts, *rest)
                self.use_vllm = False
                completions, _ = super()._generate_single_turn(prompts, *rest)
                exact = logprobs_of(recorded.model, samples_of(prompts, completions, [0.0] * len(prompts)))
                noise = np.random.default_rng(len(recorded.sampled)).normal(0, spread, exact.shape)
                recorded.sampled.append((exact + noise * (exact < 0)).astype(np.float32))
                self.use_vllm = True
                return completions, [
                    row[: len(one)].tolist() for row, one in zip(recorded.sampled[-1], completions, strict=True)
                ]

            def _generate_and_score_completions(self, inputs: Any) -> Any:
                found = super()._generate_and_score_completions(inputs)
                metrics = {key: values[-1] for key, values in self._metrics["train"].items() if "sampling/" in key}
                recorded.told.append(metrics)
                recorded.batches.append({name: one for name, one in found.items() if isinstance(one, Tensor)})
                return found

            def _compute_loss(self, model: Any, inputs: Any) -> Any:
                loss = super()._compute_loss(model, inputs)
                recorded.losses.append(float(loss))
                return loss

        def odd(completion_ids: list[list[int]], **_: Any) -> list[float]:
            recorded.completions.append(completion_ids)
            recorded.rewards.append([float(sum(ids) % 3 == 0) for ids in completion_ids])
            return recorded.rewards[-1]

        self.model.save_pretrained(folder / "start")  # from which the trainer loads its reference
        self.model.config._name_or_path = str(folder / "start")
        assert self.model.generation_config is not None
        self.model.generation_config.eos_token_id = 6
        warnings.simplefilter("ignore")  # of TRL's own doing
        trainer = Recording(
            model=self.model,
            reward_funcs=odd,
            args=kind(
                output_dir=str(folder),
                per_device_train_batch_size=16 // parts,
                gradient_accumulation_steps=parts,
                num_generations=4,
                max_completion_length=5,
                max_steps=6,
                seed=1,
                **settings,
                **PLAINLY,
            ),
            train_dataset=Dataset.from_list([{"prompt": f"{a} {b} 5"} for a in range(8) for b in range(4)]),
            processing_class=tokenizer,
        )
        trainer.train()


SETTINGS: dict[str, dict[str, Any]] = {
    "grpo": {"num_iterations": 2, "beta": 0.04, "loss_type": "grpo"},
    "of whole completions": {
        "num_iterations": 2,
        "beta": 0.04,
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "use_bias_correction_kl": False,
        "epsilon": 0.02,
        "epsilon_high": 0.03,
    },
    "dapo": {"num_iterations": 1, "beta": 0.0, "loss_type": "dapo", "entropy_coef": 0.1},
    "bounded": {"num_iterations": 2, "beta": 0.0, "loss_type": "dapo", "epsilon_high": 0.3, "delta": 1.4},
    "dr_grpo": {"num_iterations": 2, "beta": 0.0, "loss_type": "dr_grpo", "mask_truncated_completions": True},
    "cispo": {
        "num_iterations": 2,
        "beta": 0.0,
        "loss_type": "cispo",
        "epsilon_high": 5.0,
        "mask_truncated_completions": True,
    },
    "rloo": {"num_iterations": 2, "beta": 0.1},
    "vllm, grpo": {"num_iterations": 2, "beta": 0.04, "loss_type": "grpo", "spread": 0.5},
    "vllm, dapo": {
        "num_iterations": 1,
        "beta": 0.0,
        "loss_type": "dapo",
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": 1.2,
        "spread": 0.3,
    },
    "vllm, dr_grpo": {
        "num_iterations": 1,
        "beta": 0.0,
        "loss_type": "dr_grpo",
        "vllm_importance_sampling_mode": "token_mask",
        "vllm_importance_sampling_clip_max": None,
        "vllm_importance_sampling_clip_min": 0.8,
        "spread": 0.3,
    },
    "vllm, cispo": {
        "num_iterations": 2,
        "beta": 0.0,
        "loss_type": "cispo",
        "epsilon_high": 5.0,
        "vllm_importance_sampling_mode": "sequence_truncate",
        "vllm_importance_sampling_clip_min": 0.9,
        "spread": 0.2,
    },
}
"""Arguments of TRL's trainers, which have the names of the settings here; and a spread of vLLM's draws."""
TOLD = {
    "sampler_difference": "sampling/sampling_logp_difference/mean",
    "sampler_difference_max": "sampling/sampling_logp_difference/max",
    "sampler_weight": "sampling/importance_sampling_ratio/mean",
    "sampler_weight_max": "sampling/importance_sampling_ratio/max",
}
"""Metrics of the curve, and of TRL."""
CHOICES = {
    "loss_type": GRPOLoss,
    "importance_sampling_level": ImportanceSampling,
    "vllm_importance_sampling_mode": VLLMCorrection,
}


def logprobs_of(model: Any, data: grpo.Samples) -> np.ndarray:
    with torch.no_grad():
        found = completion_logprobs(model, batch_of(data.sequences, np.arange(16), "cpu")).double().numpy()
    return grpo.padded(grpo.supervised_columns(found, data.sequences))


@pytest.mark.parametrize("name", SETTINGS)
def test_from_the_same_completions_and_rewards_weights_are_those_of_trls_trainer(
    name: str, tmp_path: Path
) -> None:
    """Six steps with accumulation: padded and cut off rows, groups without signal, ratios that are clipped."""
    settings, is_rloo = SETTINGS[name], name == "rloo"
    parts = 1 if "dapo" in name else 2  # TRL's bonus for entropy is a mean by micro-batch
    with warnings.catch_warnings():
        trl = Recorded(tmp_path, is_rloo, parts, **settings)
    assert sum(len(set(one[at : at + 4])) == 1 for one in trl.rewards for at in range(0, 16, 4)) > 0
    model, anchor, beta = tiny_policy(), tiny_policy(), settings["beta"]
    own = {"loss_type": "grpo", "importance_sampling_level": "product"} if is_rloo else {}
    given = {key: CHOICES[key][value] if key in CHOICES else value for key, value in {**own, **settings}.items()}
    given.pop("spread", None)
    algo = GRPOConfig(epochs=given.pop("num_iterations"), **given)

    shares: list[float] = []

    def drawn(number: int) -> online.DrawnBatch:
        given, rewards = trl.batches[number], np.array(trl.rewards[number])
        prompts = [
            row[real.bool()].tolist() for row, real in zip(given["prompt_ids"], given["prompt_mask"], strict=True)
        ]
        completions, masked = trl.completions[number], ~given["completion_mask"].any(1).numpy()
        shares.append(masked.mean())
        bare = samples_of(prompts, completions, rewards)
        sampled = trl.sampled[number] if trl.sampled else None
        data = grpo.Samples(bare.sequences, logprobs_of(model, bare), sampled).silenced(masked)
        held = logprobs_of(anchor, bare) if beta else None
        if is_rloo:
            advantages = grpo.leave_one_out(rewards - beta * grpo.log_ratios(data, logprobs_of(anchor, bare)), 4)
            return online.DrawnBatch(grpo.grpo_set(model, data, advantages, None, algo, "cpu", longest=5))
        advantages = grpo.group_advantages(rewards, 4, ScaleRewards.group)
        return online.DrawnBatch(grpo.grpo_set(model, data, advantages, held, algo, "cpu", longest=5))

    table = online.Timetable(4 * len(trl.batches), 4, 4, algo.epochs)
    curve = loop.Curve(training="t", folder=tmp_path)
    how = fitting(batch_size=16, weight_decay=0.0, horizon=math.inf, curve=curve)
    losses, _ = online.fit_drawn(model, table, drawn, how, longest=5, group=4)
    assert max(shares) < 1
    assert (max(shares) > 0) == algo.mask_truncated_completions
    # `RLOOTrainer` leaves the division by the steps of accumulation to its base.
    theirs = [sum(trl.losses[at : at + parts]) / (parts if is_rloo else 1) for at in range(0, 6 * parts, parts)]
    assert losses == pytest.approx(theirs, abs=1e-5)
    for step, row in enumerate(read_curve(tmp_path)):
        sampling = trl.told[step // algo.epochs]
        expected = {ours: sampling[theirs] for ours, theirs in TOLD.items()} if trl.sampled else {}
        assert {key: row.extra[key] for key in TOLD if key in row.extra} == pytest.approx(expected, rel=1e-4)
    gone = [
        (ours.detach() - start, trls.detach() - start)
        for (name, ours), trls in zip(model.named_parameters(), trl.model.parameters(), strict=True)
        for start in [trl.start[name]]
    ]
    apart, far = (
        sum(float(one.double().square().sum()) for one in each) ** 0.5
        for each in ([a - b for a, b in gone], [b for _, b in gone])
    )
    assert apart / far < 1e-2  # Adam makes steps of one size of gradients that are all but zero
