"""DPO: our loop around TRL's loss is what TRL's trainer computes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2LMHeadModel

from pipeline.errors import JobStopped
from pipeline.learning.algos.dpo import DPOConfig
from pipeline.learning.choices import DPOLoss
from pipeline.learning.datasets.shipped import Addition, AdditionConfig
from pipeline.learning.models.tiny import make_tokenizer
from pipeline.learning.training import loop
from pipeline.learning.training.checkpoint import Checkpoints
from pipeline.learning.training.preferences import PairLoss, dpo_set
from pipeline.learning.training.scoring import completion_logprobs, score_sequences
from pipeline.learning.training.sequences import Sequences, batch_of
from tests.doubles.fitting import fitting
from tests.doubles.models import tiny_policy
from tests.unit.learning.training.test_out_of_memory import Limited


def pairs(count: int = 12) -> Sequences:
    """Prompts of different lengths; what is chosen begins with an even token."""
    generator = np.random.default_rng(0)
    ids, starts = [], []
    for _ in range(count):
        prompt = generator.integers(0, 10, generator.integers(2, 6)).tolist()
        for side in (0, 1):
            first = int(generator.integers(0, 5)) * 2 + side
            ids.append([*prompt, first, *generator.integers(0, 10, generator.integers(0, 4)).tolist()])
            starts.append(len(prompt))
    return Sequences.of(ids, starts, [1.0, 0.0] * count)


def anchored(data: Sequences) -> np.ndarray:
    model = tiny_policy(seed=1)
    return score_sequences(
        data, lambda batch: completion_logprobs(model, batch).sum(-1), micro_batch_size=5, device="cpu"
    )


def trl_loss(model: GPT2LMHeadModel, data: Sequences, objective: DPOConfig, folder: Path) -> torch.Tensor:
    from datasets import Dataset
    from trl import DPOConfig as TrlConfig
    from trl import DPOTrainer

    class PretokenizedTrainer(DPOTrainer):
        """TRL's trainer on pairs that are token ids already."""

        def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
            return dataset

    rows = [
        {
            "prompt_ids": data.ids[row, : data.starts[row]].tolist(),
            "chosen_ids": data.ids[row, data.starts[row] : data.lengths[row]].tolist(),
            "rejected_ids": data.ids[row + 1, data.starts[row + 1] : data.lengths[row + 1]].tolist(),
        }
        for row in range(0, len(data), 2)
    ]
    arguments = TrlConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        report_to="none",
        loss_type=[objective.loss_type.value],
        beta=objective.beta,
        label_smoothing=objective.label_smoothing,
    )
    trainer = PretokenizedTrainer(
        model,
        tiny_policy(seed=1),
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=make_tokenizer(Addition(AdditionConfig(kind="addition"))),
    )
    inputs = trainer.data_collator(rows)
    loss: torch.Tensor = trainer.compute_loss(model, inputs)
    return loss


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("loss_type", list(DPOLoss))
def test_loss_and_gradient_are_those_of_trls_trainer(loss_type: DPOLoss, tmp_path: Path) -> None:
    smoothing = {DPOLoss.exo_pair: 0.01, DPOLoss.robust: 0.1}.get(loss_type, 0.0)
    objective = DPOConfig(loss_type=loss_type, beta=0.7, label_smoothing=smoothing)
    data, ours, theirs = pairs(), tiny_policy(), tiny_policy()
    expected = trl_loss(theirs.train(), data, objective, tmp_path)
    expected.backward()
    # Two micro-batches of different sizes, weighted by their pairs.
    loss, anchor, done = PairLoss(objective, "cpu"), anchored(data), 0
    total = torch.zeros(())
    for part in (np.arange(16), np.arange(16, len(data))):
        batch = batch_of(data, part, "cpu")
        held = torch.from_numpy(anchor[done : done + len(batch.ids)]).float()
        done += len(batch.ids)
        total = total + loss(completion_logprobs(ours, batch), batch, held) * len(batch.ids) / len(data)
    total.backward()
    assert total.item() == pytest.approx(expected.item(), rel=1e-5)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-4, atol=1e-4)


def fit(
    micro_batch_size: int = 8,
    limit: int | None = None,
    checkpoint: Checkpoints | None = None,
    epochs: int = 12,
    **settings: Any,
) -> tuple[GPT2LMHeadModel, list[float], dict[str, list[float]]]:
    model, data = tiny_policy(seed=1), pairs()
    held = anchored(data)
    if limit:
        Limited(model, limit, first_call=5)
    made = dpo_set(model, data, held, DPOConfig(**{"beta": 1.0, **settings}), "cpu")
    losses = loop.fit(model, made, fitting(micro_batch_size, checkpoint=checkpoint, epochs=epochs))
    return model, losses, dict(made.told)


@pytest.mark.parametrize("limit", [None, 2], ids=["enough memory", "too little in the third step"])
def test_what_micro_batches_report_is_told_once_whatever_interrupts_them(
    tmp_path: Path, limit: int | None
) -> None:
    calm = fit(4, limit, epochs=4)[1:]
    assert len(calm[1]["margins"]) == (2 * 12 if limit is None else 2 * 2 + 4 * 10)
    calls = iter(range(100))
    stopping = Checkpoints(tmp_path, {}, every_minutes=0, stopping=lambda: next(calls) == 9)
    with pytest.raises(JobStopped):
        fit(4, limit, stopping, epochs=4)
    assert fit(4, limit, Checkpoints(tmp_path, {}, every_minutes=0), epochs=4)[1:] == calm


def test_likelihood_of_the_chosen_can_be_held_up() -> None:
    data = pairs()
    chosen = np.arange(0, len(data), 2)
    batch = batch_of(data, chosen, "cpu")
    likelihoods = []
    for weight in (0.0, 1.0):
        model, _, _ = fit(sft_weight=weight)
        with torch.no_grad():
            likelihoods.append(completion_logprobs(model, batch).sum().item())
    assert likelihoods[1] > likelihoods[0]


def test_trl_is_imported_without_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would make folders in TMPDIR that a killed worker leaves."""
    from pipeline.learning.training.preferences import _dpo_trainer

    class Watching(ModuleType):
        def __getattr__(self, name: str) -> bool:
            return importlib.util.find_spec("wandb") is not None

    for name in [name for name in sys.modules if name.partition(".")[0] == "wandb"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "trl.trainer.dpo_trainer", Watching("trl.trainer.dpo_trainer"))
    assert _dpo_trainer.__wrapped__() is False
    assert "wandb" not in sys.modules
