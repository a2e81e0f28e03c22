"""A trained model as one object: what it completes, how it is asked, and the same guidance for transformers."""

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import convert

from pipeline.config.schema import GenerationConfig, SamplingConfig
from pipeline.errors import ConfigError, DataError
from pipeline.learning.algos.qsharp import CD, CDConfig, QSharp, QSharpConfig
from pipeline.learning.algos.value_guided import PITA, PITAConfig, ValueAlgoConfig, ValueGuidedAlgorithms
from pipeline.learning.choices import HeadType, Others
from pipeline.learning.datasets import base, shipped
from pipeline.learning.generation import decode, sampling
from pipeline.learning.generation.guided import STREAM, Guided, SavedGuide, StepOptions
from pipeline.learning.models.tiny import make_tokenizer
from pipeline.outputs.formats import Drawing, GuidanceSettings, Prompting, Sampling
from tests.unit.learning.generation.conftest import language_model, opinionated

TOKENIZER = make_tokenizer(base.load_dataset(shipped.AdditionConfig(kind="addition")))
PROMPTS = ["123+456=", "9+1=", "55+5="]
SETTINGS = GuidanceSettings(
    algo="PITA",
    eta=0.7,
    offset=PITA().guidance("PITA", PITAConfig(), "").offset,
    top_k=4,
    min_p=0.01,
    others="kept",
)
MODEL = language_model("gpt2")
SHORT = Drawing(max_new_tokens=5)


def guided(head: HeadType = HeadType.q, **settings: Any) -> Guided:
    guide = SavedGuide(model=opinionated(MODEL, head), settings=replace(SETTINGS, **settings))
    return Guided(MODEL, TOKENIZER, guide, drawing=SHORT)


@pytest.mark.parametrize("head", HeadType)
def test_it_draws_what_the_decoder_draws(head: HeadType) -> None:
    model = guided(head)
    found = model.complete(PROMPTS, n=3, seed=4)
    assert model.value is not None
    told = decode.decode(
        MODEL,
        [TOKENIZER(prompt)["input_ids"] for prompt in PROMPTS],
        [5] * 3,
        decode.DecodeSettings(batch_size=64),
        keys=sampling.sample_keys(4, STREAM, np.arange(3), 3),
        samples=3,
        guidance=decode.Guidance(model.value, PITA().tilt(PITAConfig(eta=0.7, top_k=4, min_p=0.01))),
    )
    assert [one.token_ids for one in found] == told.tokens
    assert [one.kl for one in found] == pytest.approx(told.kl.tolist(), abs=1e-5)
    assert [one.text for one in found] == model.generate(PROMPTS, n=3, seed=4)
    assert not any(one.ended for one in found)


def test_each_option_of_sampling_is_one_of_a_run_a_dataset_and_a_call() -> None:
    options: dict[str, Any] = dict.fromkeys(Sampling().options(), 0.5)
    assert GenerationConfig(**options).sampling.options() == options
    assert SamplingConfig(**options).of_generation() == options
    assert StepOptions.__annotations__.keys() == {"eta", *options}


@pytest.mark.parametrize("others", Others)
@pytest.mark.parametrize("head", HeadType)
def test_the_processor_of_transformers_takes_the_same_tokens(head: HeadType, others: Others) -> None:
    model = guided(head, others=others.name)
    inputs = TOKENIZER(PROMPTS, return_tensors="pt", padding=True, padding_side="left")
    inputs.pop("token_type_ids", None)
    asked: list[Any] = [{"eta": 0.2}, {"eta": 3.0, "temperature": 1.3, "top_p": 0.9}]
    for options in asked:
        processor = model.logits_processor(**options)
        taken = MODEL.generate(**inputs, logits_processor=[processor], do_sample=False, max_new_tokens=5)
        told = model.complete(PROMPTS, greedy=True, **options)
        assert taken[:, -5:].tolist() == [one.token_ids for one in told]


@pytest.mark.parametrize("head", HeadType)
def test_values_are_what_the_value_model_expects_after_each_token(head: HeadType) -> None:
    model = guided(head)
    [found] = model.complete(PROMPTS[0], values=True)
    assert found.values is not None
    assert model.value is not None
    prompt = TOKENIZER(PROMPTS[0])["input_ids"]
    for place, token in enumerate(found.token_ids):
        text = torch.tensor([prompt + found.token_ids[: place + 1]])
        logit = model.value(text)[0, -1] if head is HeadType.v else model.value(text[:, :-1])[0, -1, token]
        assert found.values[place] == pytest.approx(float(logit.sigmoid()), abs=1e-5)


METHODS: list[tuple[type[ValueGuidedAlgorithms], ValueAlgoConfig]] = [
    (PITA, PITAConfig()),
    (QSharp, QSharpConfig(value_min=-2.0, value_max=3.0, others=Others.dropped)),
    (QSharp, QSharpConfig(atoms=4, value_min=-1.0, others=Others.offset_zero)),
    (CD, CDConfig(value_max=4.0)),
    (CD, CDConfig(atoms=3, top_k=2, min_p=0.0)),
]


@pytest.mark.parametrize(("kind", "algo"), METHODS, ids=lambda one: getattr(one, "__name__", ""))
def test_what_is_saved_guides_as_the_method_does_at_every_strength(
    kind: type[ValueGuidedAlgorithms], algo: ValueAlgoConfig
) -> None:
    method = kind()
    saved = method.guidance("x", algo, "0a" * 20)
    assert (saved.eta, saved.reference) == (algo.eta, "0a" * 20)
    read = convert(asdict(saved), GuidanceSettings)
    guide = SavedGuide(model=opinionated(MODEL, HeadType.q), settings=read)
    z = torch.randn(5, 6, *([method.atoms(algo)] if method.atoms(algo) > 1 else []))
    for eta in (0.05, 0.7, 20.0):
        made, told = guide.tilt(eta), method.tilt(replace(algo, eta=eta))
        assert torch.equal(made.offset(z), told.offset(z))
        assert (made.top_k, made.min_p, made.others) == (told.top_k, told.min_p, told.others)


class Own(PITA):
    """A method with a rule of its own."""

    def offset(self, algo: ValueAlgoConfig) -> sampling.Offset:
        return lambda z: z.clamp(max=0) / algo.eta


def test_a_rule_of_ones_own_must_be_given() -> None:
    saved = Own().guidance("Own", PITAConfig(), "no key")
    assert (saved.offset, saved.reference) == (None, None)
    value = opinionated(MODEL, HeadType.q)
    with pytest.raises(ConfigError, match=r"Own makes offsets .* offset=lambda eta"):
        Guided(MODEL, TOKENIZER, SavedGuide(model=value, settings=saved), drawing=SHORT).generate("1+1=")
    own: Callable[[float], sampling.Offset] = lambda eta: Own().offset(PITAConfig(eta=eta))  # noqa: E731
    assert Guided(MODEL, TOKENIZER, SavedGuide(model=value, settings=saved, offset=own), drawing=SHORT).generate(
        "1+1="
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("eta", math.nan), ("n", True), ("seed", -1), ("top_p", 1.5), ("top_k", 3)],
    ids=str,
)
def test_an_option_out_of_its_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"\b{name}\b"):
        guided().generate("1+1=", **{name: value})


def test_a_policy_by_itself_has_no_strength() -> None:
    plain = Guided(MODEL, TOKENIZER)
    for ask in (
        lambda: plain.generate("1+1=", eta=1.0),
        lambda: plain.logits_processor(),
        lambda: plain.complete("1+1=", values=True),
        lambda: Guided(MODEL, TOKENIZER, eta=1.0),
    ):
        with pytest.raises(ConfigError, match="policy"):
            ask()


def test_prompts_become_what_the_dataset_made_of_them() -> None:
    model = guided()
    model.prompting = Prompting(prompt_template="{prompt}+{more}=")
    plain = guided()
    assert model.generate({"prompt": "12", "more": "3"}) == plain.generate("12+3=")
    with pytest.raises(DataError, match=r"prompt 2: prompt_template uses '\{more\}'"):
        model.generate([{"prompt": "1", "more": 2}, "12"])
    with pytest.raises(DataError, match="prompt 1: the prompt is empty"):
        plain.generate(" ")
    with pytest.raises(ConfigError, match="expected a text or a list of texts, got int"):
        plain.generate(3)  # type: ignore[arg-type]
    assert plain.generate([]) == []


def test_conversations_go_through_the_chat_template() -> None:
    tokenizer = make_tokenizer(base.load_dataset(shipped.AdditionConfig(kind="addition")))
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}+{% endfor %}1="
    value = SavedGuide(model=opinionated(MODEL, HeadType.q), settings=SETTINGS)
    model = Guided(MODEL, tokenizer, value, drawing=SHORT, prompting=Prompting(chat=True, system_prompt="9"))
    plain = Guided(MODEL, tokenizer, value, drawing=SHORT)
    turns = [{"role": "system", "content": "9"}, {"role": "user", "content": "12"}]
    assert model.generate("12") == model.generate(turns) == plain.generate(turns)
    assert model.generate(["12", "13"])[0] == plain.generate(turns)[0]
    with pytest.raises(DataError, match="no chat template"):
        guided().generate(turns)
