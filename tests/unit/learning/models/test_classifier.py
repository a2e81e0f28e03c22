"""Reward models as others load them: transformers' classifiers give the scores that ours give."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from pipeline.errors import JobError
from pipeline.learning.choices import HeadType
from pipeline.learning.datasets.chat import encode_answers
from pipeline.learning.models import classifier
from pipeline.learning.models.kinds import RewardModelSettings
from pipeline.learning.models.load import end_ids
from pipeline.learning.models.value import ValueModel, value_model_from
from pipeline.learning.rewards.model import RewardModel
from pipeline.learning.training.sequences import Sequences
from pipeline.learning.training.value import reward_scores
from tests.doubles.families import tiny_model
from tests.doubles.tokenizers import tokenizer

VOCABULARY = 600


def reward_model(family: str) -> ValueModel:
    """With a head that has learnt something, its bias too."""
    policy = tiny_model(family)
    policy.resize_token_embeddings(VOCABULARY, mean_resizing=False)
    model = value_model_from(policy, HeadType.v)
    generator = torch.Generator().manual_seed(1)
    for weight in model.head.parameters():
        weight.data = torch.randn(weight.shape, generator=generator)
    return model


def saved(folder: Path, model: ValueModel, kind: str, *, is_chat: bool) -> float:
    """What the logits are less than the scores."""
    tokens = deepcopy(tokenizer(kind))
    bias, ends = model.head.bias.item(), end_ids(None, tokens)
    classifier.pad_apart(tokens, ends)
    classifier.end_texts(tokens, ends, is_chat=is_chat)
    classifier.as_classifier(model, tokens).save_pretrained(folder)
    tokens.save_pretrained(folder)
    return bias


def scores(model: ValueModel, ids: list[list[int]]) -> list[float]:
    data = Sequences.of(ids, [1] * len(ids), [0.0] * len(ids))
    return reward_scores(model, data, micro_batch_size=4, device="cpu").tolist()


ASKED = ["What is 1 + 2? ", "What is 41 + 2? The "]
SAID = ["The answer is 3", "answer is not 3"]


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("llama", "Llama 2"),
        ("llama", "Gemma"),  # which has a padding token
        ("gpt2", "pads with its end"),
        ("gpt2", "no end"),
        ("gemma3_text", "plain"),
    ],
)
def test_a_classifier_gives_the_scores_of_texts_that_have_ended(tmp_path: Path, family: str, kind: str) -> None:
    tokens, model = tokenizer(kind), reward_model(family)
    ids = [encode_answers(tokens, *pair)[0].ids for pair in zip(ASKED, ([one] for one in SAID), strict=True)]
    own = scores(model, ids)
    assert abs(own[0] - own[1]) > 0.01
    bias = saved(tmp_path, model, kind, is_chat=False)
    found = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    read = AutoTokenizer.from_pretrained(tmp_path)
    assert found.config.num_labels == 1
    assert found.config.pad_token_id == read.pad_token_id != read.eos_token_id
    texts = read([one + other for one, other in zip(ASKED, SAID, strict=True)], padding=True, return_tensors="pt")
    logits = found(input_ids=texts["input_ids"], attention_mask=texts["attention_mask"]).logits
    assert (logits[:, 0] + bias).tolist() == pytest.approx(own, abs=1e-5)
    reward = RewardModel(RewardModelSettings(path=str(tmp_path)), "cpu")(ASKED, SAID)
    assert reward == pytest.approx([score - bias for score in own], abs=1e-5)


@pytest.mark.parametrize(
    "kind", ["pads with its end", "base with ChatML", "several ends", "Zephyr", "Llama 3", "Gemma"]
)
def test_a_conversation_is_read_up_to_the_end_of_its_answer(tmp_path: Path, kind: str) -> None:
    """As TRL's trainers give it to a reward model, and as our reward does."""
    tokens, model = tokenizer(kind), reward_model("llama")
    talks: list[Any] = [
        ([{"role": "user", "content": one}], [{"role": "assistant", "content": other}])
        for one, other in zip(ASKED, SAID, strict=True)
    ]
    own = scores(model, [encode_answers(tokens, asked, [said])[0].ids for asked, said in talks])
    asked_before = [
        tokens.apply_chat_template(one, tokenize=False, add_generation_prompt=True) for one, _ in talks
    ]
    bias = saved(tmp_path, model, kind, is_chat=True)
    read = AutoTokenizer.from_pretrained(tmp_path)
    assert [
        read.apply_chat_template(one, tokenize=False, add_generation_prompt=True) for one, _ in talks
    ] == asked_before
    from trl import apply_chat_template  # slow to import

    texts = [apply_chat_template({"messages": asked + said}, read)["text"] for asked, said in talks]
    inputs = read(text=texts, return_tensors="pt", padding=True, padding_side="right", add_special_tokens=False)
    found = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    logits = found(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
    assert (logits[:, 0] + bias).tolist() == pytest.approx(own, abs=1e-5)
    reward = RewardModel(RewardModelSettings(path=str(tmp_path)), "cpu")([one for one, _ in talks], SAID)
    assert reward == pytest.approx([score - bias for score in own], abs=1e-5)


def test_a_kind_without_a_classifier_is_refused() -> None:
    tokens = deepcopy(tokenizer("plain"))
    classifier.pad_apart(tokens, [1])
    with pytest.raises(JobError, match="no sequence classifier with the body MambaModel"):
        classifier.as_classifier(reward_model("mamba"), tokens)
