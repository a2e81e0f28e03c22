"""On a pretended GPU: the same as on the CPU, on one device, with no more waits than were counted."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from pipeline.config.schema import DType
from pipeline.learning.algos.policy_config import LoraSettings
from pipeline.learning.choices import GRPOLoss, HeadType, Others
from pipeline.learning.generation.decode import Decoded, DecodeSettings, Guidance, decode
from pipeline.learning.generation.policy import completion_scores
from pipeline.learning.generation.sampling import Tilt, bernoulli_offset, sample_keys
from pipeline.learning.models.value import ValueConfig, ValueModel
from pipeline.learning.training import loop, sequences
from pipeline.learning.training.grpo import Samples, grpo_set
from pipeline.learning.training.lora import with_adapters
from pipeline.learning.training.value import calibrate, fit_value
from pipeline.outputs.formats import Sampling
from tests.doubles.models import fitting as small_fitting
from tests.doubles.models import of_grpo
from tests.doubles.pretended_gpu import pretended_gpu

VOCABULARY = 2100  # more than is looked through as a whole
KINDS: dict[str, Any] = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}


def config(kind: str, vocabulary: int = VOCABULARY, spread: float = 0.3) -> Any:
    return KINDS[kind][0](
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=vocabulary,
        max_position_embeddings=64,
        initializer_range=spread,
        bos_token_id=0,
        eos_token_id=None,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )


def policy(kind: str, **sizes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    return KINDS[kind][1](config(kind, **sizes))


def valued(kind: str, head: HeadType, atoms: int = 1, **sizes: Any) -> ValueModel:
    torch.manual_seed(1)
    model = ValueModel(
        ValueConfig(backbone=config(kind, **sizes), head=head.value, atoms=atoms, attn_implementation="sdpa")
    )
    torch.nn.init.normal_(model.head.weight, std=0.3)
    return model


# -- the pretended device itself --------------------------------------------------------------------------------


def test_tensors_of_two_devices_raise_and_what_the_host_does_is_counted() -> None:
    here = torch.ones(3)
    with pretended_gpu() as counts:
        there = torch.zeros(3, device="cuda")
        assert (there.device.type, there.is_cuda, torch.cuda.is_available()) == ("cuda", True, True)
        with pytest.raises(RuntimeError, match="same device"):
            there + here
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        assert counts.waits.total() == 0
        assert (there + here.to("cuda") + 2 * torch.tensor(1)).tolist() == [3, 3, 3]
        assert (counts.waits.total(), counts.sent.total()) == (1, 1)
        assert bool(there.any()) is False
        assert counts.waits.total() == 2
        torch.use_deterministic_algorithms(True)
        try:
            with pytest.raises(RuntimeError, match="deterministic"):
                there.cumsum(0)
            assert there.long().cumsum(0).tolist() == [0, 0, 0]
        finally:
            torch.use_deterministic_algorithms(False)
    assert not torch.cuda.is_available()
    assert here.to("cpu").is_cpu


# -- decoding --------------------------------------------------------------------------------

PROMPTS = [np.random.default_rng(row).integers(1, VOCABULARY, 7 - row % 4).tolist() for row in range(5)]
WAYS: list[tuple[str, HeadType | None, dict[str, Any]]] = [
    ("qwen3", None, {"top_p": 0.8}),
    ("llama", HeadType.v, {"others": Others.offset_zero}),
    ("qwen3", HeadType.q, {"top_p": 0.8, "others": Others.dropped}),
]


def drawn(
    model: PreTrainedModel,
    value: ValueModel | None,
    device: str,
    steps: int = 6,
    eos: int | None = 7,
    *,
    top_p: float = 1.0,
    **tilt: Any,
) -> Decoded:
    prompts = PROMPTS if eos else PROMPTS[:3]  # without an end they all begin and end together
    guidance = value and Guidance(value, Tilt(bernoulli_offset(0.3), **{"top_k": 8, **tilt}))
    return decode(
        model.eval().requires_grad_(False),
        prompts,
        [steps] * len(prompts),
        DecodeSettings(batch_size=3, device=device, eos_id=eos, sampling=Sampling(top_p=top_p)),
        keys=sample_keys(0, "test", np.arange(len(prompts)), 1),
        guidance=guidance,
    )


@pytest.mark.parametrize(("kind", "head", "way"), WAYS)
def test_the_same_tokens_are_drawn(kind: str, head: HeadType | None, way: dict[str, Any]) -> None:
    theirs = drawn(policy(kind), head and valued(kind, head), "cpu", **way)
    with pretended_gpu():
        ours = drawn(policy(kind).to("cuda"), head and valued(kind, head).to("cuda"), "cuda", **way)
    assert ours.tokens == theirs.tokens
    assert ours.kl == pytest.approx(theirs.kl, abs=1e-4)


def a_step(kind: str, head: HeadType | None) -> tuple[float, float]:
    """What one step in bfloat16 waits for and sends, by eight more of them; a look at tokens is among these."""
    found = []
    for steps in (8, 16):
        model, value = policy(kind).bfloat16(), head and valued(kind, head).bfloat16()
        with pretended_gpu() as counts:
            model, value = model.to("cuda"), value and value.to("cuda")
            before = counts.waits.total(), counts.sent.total()
            drawn(model, value, "cuda", steps, None, top_p=0.8)
        found.append((counts.waits.total() - before[0], counts.sent.total() - before[1]))
    return (found[1][0] - found[0][0]) / 8, (found[1][1] - found[0][1]) / 8


@pytest.mark.parametrize(("head", "expected"), [(None, 1.375), (HeadType.v, 2.5)])
def test_what_a_step_waits_for(head: HeadType | None, expected: float) -> None:
    """Whether a nucleus reaches far, how many candidates a head `v` reads, and parts of a look at eight steps."""
    waits, sent = a_step("llama", head)
    assert waits == expected
    assert sent <= 0.25  # draws, at each look


# -- training --------------------------------------------------------------------------------

NUMBERS = np.random.default_rng(0)
IDS = [NUMBERS.integers(1, 300, 20 + row % 7).tolist() for row in range(8)]
DATA = sequences.Sequences.of(IDS, [8 + row % 3 for row in range(8)], [float(row % 2) for row in range(8)])
SMALL: dict[str, Any] = {"vocabulary": 300, "spread": 0.02}


def fitting(device: str, **training: Any) -> loop.Fitting:
    curve = loop.Curve(training="x", folder=Path(tempfile.mkdtemp()), show=lambda _: None)
    return small_fitting(
        4,
        epochs=2,
        learning_rate=1e-3,
        warmup_steps=1,
        device=device,
        dtype=DType.bfloat16,
        curve=curve,
        **training,
    )


def grpo(device: str, **how: Any) -> list[float]:
    old = np.full((8, int((DATA.lengths - DATA.starts).max())), -5, np.float32)
    algo = of_grpo(loss_type=GRPOLoss.dapo, beta=0.04)
    advantages = np.linspace(-1, 1, 8).astype(np.float32)
    model = policy("qwen3", **SMALL).to(device)
    made = grpo_set(model, Samples(DATA, old), advantages, old - 0.1, algo, device, longest=20)
    return loop.fit(model, made, fitting(device, **how))


def value(device: str, head: HeadType = HeadType.v, atoms: int = 1, **how: Any) -> list[float]:
    model = valued("qwen3", head, atoms, **SMALL).to(device)
    losses = fit_value(model, DATA, fitting(device, **how))
    judged = calibrate(model, DATA, fitting(device))
    return [*losses, judged.brier]


def lora(device: str, **how: Any) -> list[float]:
    model = with_adapters(policy("qwen3", **SMALL).bfloat16().to(device), LoraSettings(rank=4), seed=0)
    return loop.fit_sft(model.to(device), DATA, fitting(device, **how))


def scores(device: str) -> list[float]:
    model = policy("qwen3", **SMALL).eval().to(device)
    settings = DecodeSettings(batch_size=4, device=device)
    return np.concatenate(completion_scores(model, [i[:8] for i in IDS], [i[8:] for i in IDS], settings)).tolist()


TRAININGS: dict[str, tuple[Callable[..., list[float]], dict[str, Any]]] = {
    "grpo, padding_free": (grpo, {"padding_free": True}),
    "value q, atoms, padding_free": (value, {"head": HeadType.q, "atoms": 3, "padding_free": True}),
    "lora, checkpointing": (lora, {"gradient_checkpointing": True}),
    "scores": (scores, {}),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_goes_as_on_the_cpu(name: str) -> None:
    """In strict mode, as stages that train have it there: its kernels are all deterministic."""
    train, how = TRAININGS[name]
    theirs = train("cpu", **how)
    torch.use_deterministic_algorithms(True)
    try:
        with pretended_gpu():
            ours = train("cuda", **how)
    finally:
        torch.use_deterministic_algorithms(False)
    assert ours == pytest.approx(theirs, abs=1e-2)
