"""A small model that several ranks write with together, for workers to import by path; and by one process."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from pipeline.config.schema import SystemConfig
from pipeline.engine.workers.work import Work
from pipeline.errors import RanksDisagree
from pipeline.learning.algos.stage_entry import prepare_torch
from pipeline.learning.choices import HeadType
from pipeline.learning.generation import decode, sampling
from pipeline.learning.generation.policy import completion_scores
from pipeline.learning.models.batch_size import memory_identity
from pipeline.learning.models.load import load_policy
from pipeline.learning.models.value import ValueModel, value_model_from
from pipeline.learning.training.distributed import Ranks, Spread, bits_of, join
from tests.doubles.ranks import every_strategy

PROMPTS = [[5, 9, 3, 7], [8, 2, 60, 3, 4, 9, 9], [100, 3]]
SETTINGS = decode.DecodeSettings(batch_size=4, eos_id=7)
TOKENS = 5


@dataclass
class Written:
    """What a model writes and computes."""

    greedy: list[list[int]]
    drawn: list[list[int]]
    guided: list[list[int]]
    logits: torch.Tensor
    scores: list[float]


def policy() -> PreTrainedModel:
    """A Llama with heads of keys for four ranks, whose likeliest tokens are certain."""
    config = LlamaConfig(
        vocab_size=130,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=64,
        initializer_range=0.15,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config).eval().requires_grad_(False)


def value() -> ValueModel:
    """A value model that is sure of what it says, so that it changes what is written."""
    model = value_model_from(policy(), HeadType.q)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        torch.nn.init.normal_(model.head.weight, std=0.5)
    return model.eval().requires_grad_(False)


def write(model: PreTrainedModel, guide: ValueModel) -> Written:
    """Write in every way."""
    budgets, keys = [TOKENS] * len(PROMPTS), sampling.sample_keys(0, "wide", np.arange(len(PROMPTS)), 2)
    greedy = decode.decode(model, PROMPTS, budgets, SETTINGS, keys=None).tokens
    guidance = decode.Guidance(guide, sampling.Tilt(sampling.preference_offset(0.5), top_k=5))
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([PROMPTS[1]])).logits
    return Written(
        greedy=greedy,
        drawn=decode.decode(model, PROMPTS, budgets, SETTINGS, keys=keys, samples=2).tokens,
        guided=decode.decode(model, PROMPTS, budgets, SETTINGS, keys=keys, samples=2, guidance=guidance).tokens,
        logits=logits,
        scores=[float(one.sum()) for one in completion_scores(model, PROMPTS, greedy, SETTINGS)],
    )


def write_together(work: Work) -> None:
    """Write by as many ranks as there are; the first one leaves what came of it."""
    prepare_torch(1)
    with join(work.rank, work.world_size, work.device, Spread(by_tensors=True)) as ranks:
        _write_by(ranks, work)


def _write_by(ranks: Ranks, work: Work) -> None:
    model = load_policy(work.payload["model"], SystemConfig(), "cpu", ranks=ranks, base=work.payload.get("base"))
    made = write(model, value())
    held = sum(one.to_local().numel() if hasattr(one, "to_local") else one.numel() for one in model.parameters())
    about = {
        "bits": ranks.all_numbers([bits_of(made.logits)]),
        "held": ranks.all_numbers([held]),
        "asked": ranks.all_of(ranks.made_by_first(lambda: f"by rank {ranks.rank}")),
        "identity": memory_identity(model),
        "disagreed": ranks.all_of(_disagreement(model, ranks)),
    }
    if ranks.is_first:
        torch.save({"written": vars(made), "about": about}, work.out / "made.pt")
    print(f"rank {ranks.rank} is done", flush=True)


def write_and_train(work: Work) -> None:
    """Both in one job: its ranks take seconds to import torch."""
    tensors = Spread(by_tensors=True)
    every_strategy(work, also=lambda met: _write_by(Ranks(met.rank, met.size, met.device, tensors), work))


def _disagreement(model: PreTrainedModel, ranks: Ranks) -> str:
    """What a rank says where the last one has other draws than the others."""
    seed = int(ranks.rank == ranks.size - 1)
    keys = sampling.sample_keys(seed, "wide", np.arange(len(PROMPTS)), 2)
    try:
        decode.decode(model, PROMPTS, [TOKENS] * len(PROMPTS), SETTINGS, keys=keys, samples=2)
    except (RanksDisagree, ConnectionError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def forked_rank(rank: int, environment: dict[str, str], out: Path, payload: dict[str, object]) -> None:
    """One of several processes that do the same, without an engine: its output and log are below a folder."""
    os.environ |= environment
    sys.stdout = (out / f"rank{rank}.txt").open("w")
    os.dup2(sys.stdout.fileno(), 1)
    os.dup2(sys.stdout.fileno(), 2)
    work: Any = SimpleNamespace(
        rank=rank,
        world_size=int(environment["WORLD_SIZE"]),
        device="cpu",
        out=out / f"rank{rank}",
        payload=payload,
    )
    write_together(work)
    sys.stdout.flush()
