"""FLOPs that stages count are those that torch counts of what they really compute."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import transformers as hf
from torch.utils.flop_counter import FlopCounterMode

from pipeline.config.schema import TrainingConfig
from pipeline.learning.algos.policy_config import LoraSettings
from pipeline.learning.choices import HeadType, Others
from pipeline.learning.generation.decode import DecodeSettings, Guidance, decode
from pipeline.learning.generation.sampling import Tilt, bernoulli_offset, sample_keys
from pipeline.learning.models import flops
from pipeline.learning.models.value import ValueModel, value_model_from
from pipeline.learning.training import grpo, loop, lora
from pipeline.learning.training.sequences import Sequences
from pipeline.learning.training.value import calibrate, fit_value
from tests.doubles.families import tiny_model
from tests.doubles.models import of_grpo

BOUND = 0.05
VOCABULARY = 19
# Torch does not count its fused attention on a CPU.
_IDS = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0, "attn_implementation": "eager"}


def _tiny() -> hf.PreTrainedModel:
    """The shape of the embedded reference."""
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, n_inner=128, n_positions=64, **_IDS)
    )


def _llama() -> hf.PreTrainedModel:
    """With shared keys, heads wider than the model, and a large vocabulary."""
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(
            vocab_size=700,
            hidden_size=48,
            intermediate_size=112,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            **_IDS,
        )
    )


def value_model(model: hf.PreTrainedModel, head: HeadType) -> ValueModel:
    value = value_model_from(model, head)
    value.backbone.set_attn_implementation("eager")
    return value


MODELS = {"tiny": _tiny, "llama": _llama}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> hf.PreTrainedModel:
    torch.manual_seed(0)
    return MODELS[request.param]().eval()


def counts(work: Callable[[], object]) -> tuple[dict[str, int], int]:
    """What work counts by itself, and what torch counts of it."""
    with flops.metered() as meter, FlopCounterMode(display=False) as torch_counts:
        work()
    return dict(meter.flops), torch_counts.get_total_flops()


def check(work: Callable[[], object], *purposes: str) -> None:
    own, real = counts(work)
    assert set(own) == set(purposes)
    assert sum(own.values()) == pytest.approx(real, rel=BOUND)


def sequences(count: int = 8, length: int = 24, start: int = 9) -> Sequences:
    """Texts of equal length: no padding, which torch would count."""
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (count, length)).tolist()
    return Sequences.of(ids, [start] * count, [1.0, 0.0] * (count // 2), list(range(count)))


def fitting() -> loop.Fitting:
    training = TrainingConfig(micro_batch_size=4)
    return loop.Fitting(batch_size=4, epochs=1, learning_rate=1e-3, training=training, seed=0, device="cpu")


def drawn(model: hf.PreTrainedModel, guidance: Guidance | None = None, samples: int = 2, steps: int = 5) -> object:
    prompts = [[1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1]]
    return decode(
        model,
        prompts,
        [steps, steps],
        DecodeSettings(batch_size=6),
        keys=sample_keys(0, "test", np.arange(2), samples),
        samples=samples,
        guidance=guidance,
    )


def test_generation(model: hf.PreTrainedModel) -> None:
    check(lambda: drawn(model), "decoding")


@pytest.mark.parametrize(
    ("model", "head", "others"),
    [
        ("tiny", HeadType.v, Others.kept),
        ("llama", HeadType.v, Others.offset_zero),
        ("llama", HeadType.q, Others.dropped),
    ],
    indirect=["model"],
)
def test_guided_generation(model: hf.PreTrainedModel, head: HeadType, others: Others) -> None:
    guide = value_model(model, head).eval()
    tilt = Tilt(bernoulli_offset(0.1), top_k=5, min_p=0.0, others=others)
    check(lambda: drawn(model, Guidance(guide, tilt)), "decoding", "guidance")


def test_imitation(model: hf.PreTrainedModel) -> None:
    check(lambda: loop.fit_sft(model, sequences(), fitting()), "training")


def test_groups(model: hf.PreTrainedModel) -> None:
    data = sequences()
    samples = grpo.Samples(data, np.zeros((8, 15), np.float32))
    made = grpo.grpo_set(model, samples, np.ones(8, np.float32), None, of_grpo(), "cpu", longest=15)
    check(lambda: loop.fit(model, made, fitting()), "training")


@pytest.mark.parametrize("head", list(HeadType), ids=lambda head: head.name)
def test_values(model: hf.PreTrainedModel, head: HeadType) -> None:
    value = value_model(model, head)
    check(lambda: fit_value(value, sequences(), fitting()), "training")
    check(lambda: calibrate(value, sequences(), fitting()), "scoring")


def test_adapters_spare_the_gradients_of_frozen_weights() -> None:
    shape = {"vocab_size": 300, "n_embd": 48, "n_layer": 6, "n_head": 4, "n_positions": 64}
    model = hf.GPT2LMHeadModel(hf.GPT2Config(**shape, **_IDS))
    whole = flops.model_cost(model).training(flops.Pass(100, 1000, 50))
    adapted = lora.with_adapters(model, LoraSettings(rank=4), seed=0)
    assert flops.model_cost(adapted).training(flops.Pass(100, 1000, 50)) < 0.8 * whole
    check(lambda: loop.fit_sft(adapted, sequences(), fitting()), "training")


def test_experts_count_as_far_as_a_token_is_given_to_them() -> None:
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 50}
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2, "experts_implementation": "eager"}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = hf.MixtralForCausalLM(hf.MixtralConfig(**shape, **heads, **experts, **_IDS)).eval()
    check(lambda: drawn(model), "decoding")


@pytest.mark.parametrize("family", ["deepseek_v3", "mamba", "gemma3"])
def test_latent_attention_states_and_text_for_a_model_that_sees(family: str) -> None:
    model, ids = tiny_model(family), torch.zeros(2, 24, dtype=torch.long)
    model.set_attn_implementation("eager")
    if family == "deepseek_v3":
        model.set_experts_implementation("eager")

    def read() -> None:
        flops.spend("scoring", flops.model_cost(model).forward(flops.whole_texts(np.full(2, 24))))
        model(ids, use_cache=False)

    check(read, "scoring")


def test_encoders() -> None:
    shape = {"vocab_size": 50, "hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4}
    model = hf.BertForSequenceClassification(
        hf.BertConfig(**shape, intermediate_size=192, attn_implementation="eager")
    ).eval()
    ids = torch.zeros(3, 20, dtype=torch.long)

    def read() -> None:
        flops.spend("rewards", flops.model_cost(model).forward(flops.whole_texts(np.full(3, 20))))
        model(ids)

    check(read, "rewards")


def test_padding_and_the_number_of_texts_at_once_change_nothing() -> None:
    model, prompts, budgets = _tiny().eval(), [[1], [2, 3, 4, 5, 6], [7, 8, 9]], [9, 4, 1]
    keys = sample_keys(0, "test", np.arange(3), 2)

    def spent(size: int, part: slice = slice(None)) -> int:
        settings = DecodeSettings(batch_size=size)
        with flops.metered() as meter:
            decode(model, prompts[part], budgets[part], settings, keys=keys[part], samples=2)
        return meter.total

    assert spent(6) == spent(2) == sum(spent(2, slice(at, at + 1)) for at in range(3))
