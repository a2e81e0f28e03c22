"""Reward models of the kinds that people have, tiny and made here."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, GPT2Config, GPT2ForSequenceClassification, PreTrainedTokenizerFast

from pipeline.config.schema import DatasetConfig, GradingConfig
from pipeline.errors import ConfigError, JobError
from pipeline.learning.datasets.base import Row
from pipeline.learning.datasets.chat import DATE
from pipeline.learning.models.kinds import RewardModelSettings
from pipeline.learning.rewards.model import RewardModel
from pipeline.learning.rewards.scoring import Scorer

WORDS = ["<end>", "<unk>", "user", "assistant", "good", "bad", "so", "it", "is"]


def make(folder: Path, labels: int, pad: bool = False, template: str | None = None) -> Path:
    """A GPT-2 with a classification head, and a tokenizer of whole words."""
    torch.manual_seed(labels)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<end>"} if pad else {}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unk>", **special)
    fast.chat_template = template
    fast.save_pretrained(folder)
    names = {0: "NEGATIVE", 1: "POSITIVE"} if labels == 2 else {i: f"LABEL_{i}" for i in range(labels)}
    config = GPT2Config(
        vocab_size=len(WORDS), n_embd=16, n_layer=1, n_head=2, n_positions=16, num_labels=labels, id2label=names
    )
    model = GPT2ForSequenceClassification(config)
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def scalar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("scalar"), 1)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("classifier"), 2, pad=True)


def logits(folder: Path, text: str) -> torch.Tensor:
    """What the model says of one text alone."""
    model = GPT2ForSequenceClassification.from_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    with torch.no_grad():
        return model(**tokenizer(text, return_tensors="pt", return_token_type_ids=False)).logits[0].double()


def scores(folder: Path, prompts: list[Any], completions: list[Any], **settings: Any) -> list[float | None]:
    return RewardModel(RewardModelSettings(path=str(folder), **settings), "cpu")(prompts, completions)


def test_a_single_output_is_the_reward(scalar: Path) -> None:
    """Texts of several lengths in one batch: each gets what it would get alone."""
    prompts, completions = ["so it is ", "it is ", "so "], ["good", "good bad good", "bad"]
    expected = [logits(scalar, p + c)[0].item() for p, c in zip(prompts, completions, strict=True)]
    assert scores(scalar, prompts, completions) == pytest.approx(expected, abs=1e-5)
    assert scores(scalar, prompts, completions, batch_size=2) == pytest.approx(expected, abs=1e-5)
    chances = scores(scalar, prompts, completions, output="probability")
    assert chances == pytest.approx(torch.tensor(expected).sigmoid().tolist(), abs=1e-5)


@pytest.mark.parametrize("label", ["POSITIVE", 1])
def test_one_class_of_several_is_the_reward(classifier: Path, label: str | int) -> None:
    whole = logits(classifier, "it is good")
    given: Any = (["it is "], ["good"])
    assert scores(classifier, *given, label=label) == pytest.approx([whole.softmax(0)[1].item()], abs=1e-5)
    assert scores(classifier, *given, label=label, output="logit") == pytest.approx([whole[1].item()], abs=1e-5)
    odds = (whole[1] - whole[0]).item()
    assert scores(classifier, *given, label=label, output="log_odds") == pytest.approx([odds], abs=1e-5)


def test_texts_that_end_with_the_end_token_are_read_there_in_any_batch(tmp_path: Path) -> None:
    """Padding with the end token would hide the end of the text from the model."""
    folder = make(tmp_path, 1)
    prompts, completions = ["so it is ", "it "], ["good <end>", "bad <end>"]
    expected = [logits(folder, p + c)[0].item() for p, c in zip(prompts, completions, strict=True)]
    assert scores(folder, prompts, completions) == pytest.approx(expected, abs=1e-5)


def test_a_template_that_asks_for_the_date_is_told_the_same_on_every_day(tmp_path: Path) -> None:
    ask = f"{{{{ 'good' if strftime_now('%Y-%m-%d') == '{DATE}' else 'bad' }}}}"
    folder = make(tmp_path, 1, template="{% for turn in messages %}{{ turn.content }} {% endfor %}" + ask)
    assert scores(folder, ["it is"], ["so"]) == pytest.approx(
        [logits(folder, "it is so good")[0].item()], abs=1e-5
    )


def test_the_template_has_the_tools_and_arguments_of_each_row(tmp_path: Path) -> None:
    known = "{% if tools %}good {% endif %}{% if bad %}bad {% endif %}"
    folder = make(
        tmp_path, 1, template=f"{known}{{% for turn in messages %}}{{{{ turn.content }}}} {{% endfor %}}"
    )
    asked = [{"role": "user", "content": "it is"}]
    rows = [
        Row(0, asked, {"note": 1}),
        Row(1, asked, {"tools": [{"type": "function"}]}),
        Row(2, asked, {"chat_template_kwargs": {"bad": True}}),
    ]
    grading = GradingConfig(options={"model": {"path": str(folder)}})
    with Scorer(DatasetConfig(kind="jsonl", reward="model", grading=grading)) as scorer:
        found = scorer.score(rows, ["so"] * 3, [[1]] * 3).values
    texts = ("it is so", "good it is so", "bad it is so")
    assert found == pytest.approx([logits(folder, text)[0].item() for text in texts], abs=1e-5)


def test_a_text_without_any_token_has_no_score(scalar: Path) -> None:
    found = scores(scalar, ["", "", ""], ["", "good", " "])
    assert found[0::2] == [None, None]
    assert found[1:2] == pytest.approx([logits(scalar, "good")[0].item()], abs=1e-5)
    assert scores(scalar, [""], [""]) == [None]


def test_a_score_that_is_no_number_is_a_fault_and_an_empty_text_is_not(tmp_path: Path) -> None:
    folder = make(tmp_path, 1)
    model = GPT2ForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        model.transformer.wte.weight[WORDS.index("bad")] = torch.nan
    model.save_pretrained(folder)
    grading = GradingConfig(options={"model": {"path": str(folder), "with_prompt": False}})
    rows = [Row(at, "it", {}) for at in range(3)]
    with Scorer(DatasetConfig(kind="jsonl", reward="model", grading=grading)) as scorer:
        found = scorer.score(rows, ["good", "bad", ""], [[1]] * 3)
    assert list(found.faults) == [None, "error", None]


def test_texts_that_a_tokenizer_hardly_knows_are_told(scalar: Path, caplog: pytest.LogCaptureFixture) -> None:
    scores(scalar, ["it is "], ["good so it is good so it is good so it is"])
    assert not caplog.records
    scores(scalar, ["What is "], ["three"])
    assert "<unk>" in caplog.text


def test_what_cannot_be_loaded_is_told(scalar: Path, classifier: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has 2 classes: say which one"):
        scores(classifier, [], [])
    with pytest.raises(ConfigError, match="Did you mean 'POSITIVE'"):
        scores(classifier, [], [], label="POSITIV")
    with pytest.raises(ConfigError, match="has one output"):
        scores(scalar, [], [], label="POSITIVE")
    with pytest.raises(ConfigError, match="cannot load the reward model"):
        scores(tmp_path / "nowhere", [], [])


def test_a_language_model_without_a_head_for_rewards_is_refused(scalar: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(scalar, folder)
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder)
    with pytest.raises(JobError, match=r"lack 1 of the tensors .* such as score\.weight"):
        scores(folder, [], [])


def test_texts_are_scored_in_turn_where_memory_runs_out(
    scalar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, completions = ["1 + 2 ="] * 5, ["3", "4", "5", "33", "34"]
    whole = scores(scalar, prompts, completions)
    compute, seen = RewardModel._scores, []

    def limited(self: RewardModel, encoded: Any) -> torch.Tensor:
        seen.append(len(encoded["input_ids"]))
        if seen[-1] > 2:
            raise torch.OutOfMemoryError("no")
        return compute(self, encoded)

    monkeypatch.setattr(RewardModel, "_scores", limited)
    assert scores(scalar, prompts, completions) == pytest.approx(whole, abs=1e-5)
    assert seen == [5, 2, 2, 1]
    seen.clear()
    for _ in range(2):  # in another worker, which has the same folder
        RewardModel(RewardModelSettings(path=str(scalar)), "cpu", tmp_path)(prompts, completions)
    assert seen == [5, 2, 2, 1, 2, 2, 1]
