"""Small trainings by several ranks, for workers to import by path; and the same ones by a single process."""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from pipeline.config.schema import Sharding, Strategy, SystemConfig
from pipeline.engine.workers.messages import classify
from pipeline.engine.workers.work import Work
from pipeline.errors import JobStopped
from pipeline.learning.algos import dpo, online, policy_config, stage_entry
from pipeline.learning.choices import GRPOLoss, HeadType, ScaleRewards
from pipeline.learning.datasets import base, shipped
from pipeline.learning.models import kinds, load, tiny
from pipeline.learning.models.value import value_model_from
from pipeline.learning.training import distributed, grpo, loop, lora, scoring, sequences
from pipeline.learning.training.checkpoint import Checkpoints
from pipeline.learning.training.preferences import dpo_set, kto_set
from pipeline.learning.training.value import fit_reward_model, fit_value, reward_scores
from tests.doubles.machine import listening, own_memory
from tests.doubles.models import fitting, of_grpo, tiny_policy
from tests.doubles.training import small_sequences

SPREADS = {
    "ddp": distributed.Spread(),
    "full_shard": distributed.Spread(strategy=Strategy.fsdp),
    "shard_grad_op": distributed.Spread(strategy=Strategy.fsdp, sharding=Sharding.shard_grad_op),
}
STEPS = 7
Trained = tuple[PreTrainedModel, list[float]]


def value(
    ranks: distributed.Ranks = distributed.ALONE,
    checkpoint: Checkpoints | None = None,
    on_step: Callable[[int], None] = id,
    curve: loop.Curve | None = None,
) -> Trained:
    """7 steps of 7 sequences of different lengths, 2 at once: no number of ranks divides them."""
    config = GPT2Config(
        vocab_size=13, n_embd=16, n_layer=2, n_head=2, n_positions=32, bos_token_id=10, eos_token_id=None
    )
    torch.manual_seed(ranks.rank)  # rank 0's weights reach all
    model = value_model_from(GPT2LMHeadModel(config), HeadType.q)
    losses = fit_value(
        model,
        small_sequences(),
        fitting(
            2,
            batch_size=7,
            head_learning_rate=3e-2,
            epochs=2,
            warmup_steps=2,
            grad_clip=0.5,
            on_step=lambda done, total, tokens: on_step(done),
            checkpoint=checkpoint,
            ranks=ranks,
            curve=curve,
        ),
    )
    return model, losses


def reference(ranks: distributed.Ranks = distributed.ALONE, curve: loop.Curve | None = None) -> Trained:
    """A model whose output layer is its embedding."""
    config = kinds.TinyModelConfig(
        kind="tiny", steps=6, batch_size=6, n_embd=16, n_head=2, n_inner=16, warmup_steps=2
    )
    dataset = base.load_dataset(shipped.AdditionConfig(kind="addition"))
    return tiny.train_reference(
        config, SystemConfig(), dataset, "cpu", lambda step, tokens: None, ranks=ranks, curve=curve
    )


def pairs(ranks: distributed.Ranks = distributed.ALONE, curve: loop.Curve | None = None) -> Trained:
    """DPO of adapters: most of the model is frozen. 5 pairs a step, 2 at once."""
    torch.manual_seed(0)
    model = lora.with_adapters(tiny_policy(), policy_config.LoraSettings(rank=2, alpha=4), seed=0)
    data, anchor = small_sequences(), tiny_policy(seed=1)
    ranks.prepare(anchor)
    held = scoring.score_sequences(
        data,
        lambda batch: scoring.completion_logprobs(anchor, batch).double().sum(-1),
        micro_batch_size=5,
        device="cpu",
        ranks=ranks,
    )
    losses = loop.fit(
        model, dpo_set(model, data, held, dpo.DPOConfig(beta=0.5), "cpu"), _fitting(10, 4, ranks, curve)
    )
    ranks.gather(model)
    return lora.merged(model) if ranks.is_first else tiny_policy(), losses


def labelled(ranks: distributed.Ranks = distributed.ALONE, curve: loop.Curve | None = None) -> Trained:
    """KTO, of which all ranks first estimate how far the policy is from its anchor."""
    model, anchor = tiny_policy(), tiny_policy(seed=1)
    ranks.prepare(anchor)

    def scores(of: nn.Module, data: sequences.Sequences) -> NDArray[np.float64]:
        return scoring.score_sequences(
            data,
            lambda batch: scoring.completion_logprobs(of, batch).double().sum(-1),
            micro_batch_size=5,
            device="cpu",
            ranks=ranks,
        )

    data = replace(small_sequences(), prompts=np.arange(len(small_sequences())))
    data = replace(data, labels=(data.labels > 0.5).astype(np.float32))
    of = {"of_anchor": partial(scores, anchor), "of_policy": partial(scores, model)}
    made = kto_set(model, data, 0.5, (1.0, 1.0), "cpu", **of)
    return model, loop.fit(model, made, _fitting(10, 4, ranks, curve))


def reward(ranks: distributed.Ranks = distributed.ALONE, curve: loop.Curve | None = None) -> Trained:
    """A reward model, and the scores that it gives: once more a forward pass of all ranks."""
    model = value_model_from(tiny_policy(), HeadType.v)
    data = small_sequences()
    losses = fit_reward_model(model, data, _fitting(6, 2, ranks, curve))
    scores = reward_scores(model, data, micro_batch_size=7, device="cpu", ranks=ranks)
    return model, [*losses, *scores.tolist()]


def groups(ranks: distributed.Ranks = distributed.ALONE, curve: loop.Curve | None = None) -> Trained:
    """GRPO on groups of 4."""
    model, data = tiny_policy(), small_sequences()
    logprobs = np.full((len(data), 2), -2.0, np.float32)
    samples = grpo.Samples(sequences=data, logprobs=logprobs)
    advantages = grpo.group_advantages(data.labels, 4, ScaleRewards.group)
    made = grpo.grpo_set(model, samples, advantages, None, of_grpo(loss_type=GRPOLoss.dapo), "cpu", longest=2)
    return model, loop.fit(model, made, _fitting(12, 4, ranks, curve))


def drawn(ranks: distributed.Ranks = distributed.ALONE, curve: loop.Curve | None = None) -> Trained:
    """Batches that are drawn on the way, of which the second has nothing to learn from. By ddp alone."""
    ranks = distributed.Ranks(ranks.rank, ranks.size, ranks.device)
    model, data = tiny_policy(), small_sequences()
    batches = [data.some(np.arange(start, stop)) for start, stop in ((0, 5), (5, 5), (5, 10))]
    losses, _ = online.fit_drawn(
        model,
        online.Timetable(3, 1, 1),
        lambda number: online.DrawnBatch(loop.sft_set(model, batches[number])),
        _fitting(5, 2, ranks, curve),
        longest=2,
    )
    return model, losses


def _fitting(batch: int, micro: int, ranks: distributed.Ranks, curve: loop.Curve | None) -> loop.Fitting:
    return fitting(micro, batch_size=batch, warmup_steps=1, ranks=ranks, curve=curve)


POLICIES = {
    "pairs": pairs,
    "labelled": labelled,
    "reward": reward,
    "groups": groups,
    "drawn": drawn,
    "reference": reference,
}


def curve_in(folder: Path) -> loop.Curve:
    folder.mkdir()
    return loop.Curve(training="mine", folder=folder)


def checkpoints(folder: Path, ranks: distributed.Ranks = distributed.ALONE, **settings: object) -> Checkpoints:
    return Checkpoints(folder, {"training": "value"}, **{"every_minutes": 0, "ranks": ranks, **settings})  # type: ignore


def every_strategy(work: Work, also: Callable[[distributed.Ranks], None] | None = None) -> None:
    """Train in every way, and leave models, losses and checkpoints; ranks other than 0 say what they have.

    Args:
        work: What to do.
        also: What else they do first, since ranks meet once.
    """
    stage_entry.prepare_torch(1)
    half_done = work.payload["half_done"]
    with distributed.join(work.rank, work.world_size, work.device, distributed.Spread()) as met:
        print("listens at", listening(), flush=True)
        if also:
            also(met)
        if dying := work.payload.get("dying"):
            _value_of_a_dying_rank(work, distributed.Ranks(met.rank, met.size, met.device, SPREADS[dying]))
        for name in work.payload["spreads"]:
            ranks = distributed.Ranks(met.rank, met.size, met.device, SPREADS[name])
            made = work.out / "checkpoints" / name
            curve = curve_in(work.out / f"value {name}")
            model, losses = value(ranks, checkpoints(made, ranks, every_steps=4), curve=curve)
            _keep(work, f"value {name}", model, losses, ranks)
            curve = curve_in(work.out / f"resumed {name}")
            model, losses = value(ranks, checkpoints(Path(half_done) / name, ranks), curve=curve)
            _keep(work, f"resumed {name}", model, losses, ranks)
        if "large" in work.payload:
            _say_memory(work, distributed.Ranks(met.rank, met.size, met.device, SPREADS["full_shard"]))
        for name in work.payload["policies"]:
            _keep(work, name, *POLICIES[name](ranks, curve_in(work.out / name)), ranks)
        stopped = checkpoints(work.out / "checkpoints" / "stopped", met, stopping=lambda: met.rank == met.size - 1)
        try:
            value(met, stopped)
        except JobStopped as error:
            print(f"stopped {error}")
        for name in work.payload.get("unsaved", ()):
            _stop_unsaved(work, distributed.Ranks(met.rank, met.size, met.device, SPREADS[name]), name)


def _stop_unsaved(work: Work, ranks: distributed.Ranks, name: str) -> None:
    """Stop where rank 0 can write a checkpoint and not rename it: a file has its name."""
    folder = work.out / "checkpoints" / f"unsaved {name}"
    if ranks.is_first:
        folder.mkdir(parents=True)
        (folder / "step-00000001").touch()
    try:
        value(ranks, checkpoints(folder, ranks, stopping=lambda: True))
    except JobStopped as error:
        print(f"unsaved {name}: {error}")


def forked_rank(
    rank: int, environment: dict[str, str], out: Path, payload: dict[str, object], attempt: int
) -> None:
    """One of several processes that do the same, without an engine: its output and log are below a folder."""
    os.environ |= environment
    sys.stdout = (out / f"rank{rank}.txt").open("w")
    os.dup2(sys.stdout.fileno(), 1)
    folder = out / f"rank{rank}"
    work: Any = SimpleNamespace(
        rank=rank,
        world_size=int(environment["WORLD_SIZE"]),
        device="cpu",
        out=folder,
        payload=payload,
        attempt=attempt,
        checkpoints=out / "checkpoints",
    )
    try:
        every_strategy(work)
    except RuntimeError as error:
        print("a failure that is", classify(error).value)
        raise
    finally:
        sys.stdout.flush()


def _value_of_a_dying_rank(work: Work, ranks: distributed.Ranks) -> None:
    """The last rank is killed after a few steps of the first attempt."""
    steps = 0

    def on_step(done: int) -> None:
        nonlocal steps
        steps += 1
        if work.attempt == 1 and steps == 5 and ranks.rank == ranks.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    model, losses = value(ranks, checkpoints(work.checkpoints / "value", ranks, every_steps=2), on_step)
    _keep(work, "value", model, losses, ranks)
    if ranks.is_first:
        (work.out / "steps.txt").write_text(str(steps))


def _say_memory(work: Work, ranks: distributed.Ranks) -> None:
    """Load a model and spread it, and say how much memory of its own that took at most, and how much is left."""
    before, most, ended = own_memory(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.002):
            most = max(most, own_memory() - before)

    watching = threading.Thread(target=watch)
    watching.start()
    policy = load.load_policy(work.payload["large"], SystemConfig(), "cpu", as_stored=True)
    model = value_model_from(policy, HeadType.v, take=True).requires_grad_(True)
    del policy
    ranks.prepare(model)
    ended.set()
    watching.join()
    told = {"most": most, "left": own_memory() - before, "weights": {str(one.dtype) for one in model.parameters()}}
    ranks.gather(model)
    if ranks.is_first:
        (work.out / "large").mkdir()
        model.save_pretrained(work.out / "large")
    print(f"memory: {json.dumps({**told, 'weights': sorted(told['weights'])})}")


def _keep(work: Work, name: str, model: PreTrainedModel, losses: list[float], ranks: distributed.Ranks) -> None:
    spread = sum(type(parameter).__name__ == "DTensor" for parameter in model.parameters())
    print(f"{name}: {spread} of {sum(1 for _ in model.parameters())} are spread")
    distributed.save_model(model, work.out / name, ranks)
    if ranks.is_first:
        (work.out / name / "losses.json").write_text(json.dumps(losses))
