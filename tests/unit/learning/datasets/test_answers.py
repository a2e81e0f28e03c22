"""Pairs of every shape, by tokenizers of every kind, have the ids of TRL's trainer and one end each."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from pipeline.errors import DataError
from pipeline.learning.algos.dpo import Encoding, existing_sequences
from pipeline.learning.datasets.chat import Answered, begun_by_template, encode_answers, template_ends
from pipeline.learning.datasets.from_files import FilesConfig, make_row
from pipeline.learning.training.sequences import text_id
from tests.doubles.tokenizers import TOKENIZERS, tokenizer


def said(*texts: str, first: str = "user") -> list[dict[str, str]]:
    roles = ["user", "assistant"] if first == "user" else ["assistant", "user"]
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]


def answer(*texts: str) -> list[dict[str, str]]:
    return said(*texts, first="assistant")


ASKED = "What is 3 + 4?"
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
SYSTEM = {"role": "system", "content": "Be brief."}
ROWS: Mapping[str, dict[str, Any]] = {
    "text": {"prompt": f"{ASKED} The answer is", "chosen": " 7", "rejected": " 8"},
    "text in a word": {"prompt": f"{ASKED} The ans", "chosen": "wer is 7", "rejected": "wer is 8"},
    "text that is ended": {"prompt": f"{ASKED} ", "chosen": "7</s>", "rejected": "8"},
    "HH": {
        "chosen": f"\n\nHuman: {ASKED}\n\nAssistant: 7\n\nHuman: Sure?\n\nAssistant: Yes",
        "rejected": f"\n\nHuman: {ASKED}\n\nAssistant: 7\n\nHuman: Sure?\n\nAssistant: No",
    },
    "chat": {"prompt": said(ASKED), "chosen": answer("7"), "rejected": answer("8")},
    "chat within its answers": {"chosen": said(ASKED, "7"), "rejected": said(ASKED, "8")},
    "several turns": {
        "prompt": said("Hello", "Hi", ASKED),
        "chosen": answer("7", "And 5 + 5?", "10"),
        "rejected": answer("Go away", "And 5 + 5?", "11", "Why?", "So"),
    },
    "system": {"prompt": [SYSTEM, *said(ASKED)], "chosen": answer("7"), "rejected": answer("8")},
    "tools": {"prompt": said(ASKED), "chosen": answer("7"), "rejected": answer("8"), "tools": json.dumps(TOOLS)},
    "arguments": {
        "prompt": said(ASKED),
        "chosen": answer("7"),
        "rejected": answer("8"),
        "chat_template_kwargs": {"enable_thinking": False, "date_string": "1 Jan 2026"},
    },
    "thoughts": {
        "prompt": said(ASKED),
        "chosen": answer("<think>\nadd\n</think>\n7", "Sure?", "<think>\nyes\n</think>\nYes"),
        "rejected": answer("<think>\nhm\n</think>\n8", "Sure?", "No"),
    },
    "an empty turn": {"prompt": said(ASKED), "chosen": answer("7"), "rejected": answer("")},
    "white space": {"prompt": said(ASKED), "chosen": answer(" 7 \n"), "rejected": answer("\n8")},
    "shared beginnings": {
        "prompt": said(ASKED),
        "chosen": answer("The answer is 7"),
        "rejected": answer("The answer is 70"),
    },
}


class Rows(list[dict[str, Any]]):
    """As much of a dataset as TRL's preparation asks for."""

    def map(self, make: Callable[..., Any], fn_kwargs: Mapping[str, Any] | None = None, **_: Any) -> Rows:
        return Rows([{**row, **make(dict(row), **(fn_kwargs or {}))} for row in self])


def by_trl(model: PreTrainedTokenizerBase, row: dict[str, Any]) -> tuple[list[int], list[list[int]]]:
    """Ids of the prompt, and those of both answers, of TRL's trainer."""
    from trl.trainer.dpo_trainer import DPOTrainer  # slow to import, as all of TRL

    trainer: Any = SimpleNamespace(_tokenizer=model)
    args: Any = SimpleNamespace(dataset_num_proc=None, max_length=None)
    rows: Any = Rows([row])
    (found,) = DPOTrainer._prepare_dataset(trainer, rows, model, args, "train")
    return found["prompt_ids"], [found["chosen_ids"], found["rejected_ids"]]


def by_us(model: PreTrainedTokenizerBase, data: dict[str, Any]) -> tuple[list[list[int]], list[list[bool]]]:
    pairs, *_ = existing_sequences([make_row(0, data, "", FilesConfig(kind="jsonl"))], Encoding(model))
    mask = pairs.mask().tolist()
    ids = [row[:length] for row, length in zip(pairs.ids.tolist(), pairs.lengths.tolist(), strict=True)]
    return ids, [marks[: len(row)] for marks, row in zip(mask, ids, strict=True)]


def ends_of(model: PreTrainedTokenizerBase) -> set[int]:
    return {*template_ends(model), *([] if model.eos_token_id is None else [model.eos_token_id])}


@pytest.mark.parametrize("shape", ROWS)
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_pairs_have_the_ids_of_trl_and_one_end(kind: str, shape: str) -> None:
    model, row = tokenizer(kind), ROWS[shape]
    if not isinstance(row["chosen"], str) and model.chat_template is None:
        with pytest.raises(DataError, match="no chat template"):
            by_us(model, row)
        return
    if model.eos_token is None:  # TRL's trainer fails
        ids, _ = by_us(model, {"prompt": ASKED, "chosen": " 7", "rejected": " 8"})
        assert ids == [model(f"{ASKED} {number}")["input_ids"] for number in (7, 8)]
        return
    try:
        prompt, answers = by_trl(model, row)
    except TemplateError:
        with pytest.raises(DataError, match="System role not supported"):
            by_us(model, row)
        return
    ours, supervised = by_us(model, row)
    ends = ends_of(model)
    for ids, marks, theirs in zip(ours, supervised, answers, strict=True):
        whole = [*prompt, *theirs]
        assert ids == whole[: len(ids)]
        assert marks.index(True) == len(prompt)
        # What is left out is behind the end.
        assert ids[-1] in ends
        left = [token for token in whole[len(ids) :] if token not in ends]
        assert not model.decode(left).strip()
        assert ids[-2] not in ends


def test_a_prompt_has_one_id_whichever_answer_its_last_tokens_merge_with() -> None:
    answers = [("wer is 7", "wer is 8"), (" 7", " 8")]
    rows = [
        make_row(
            at, {"prompt": f"{ASKED} The ans", "chosen": one, "rejected": other}, "", FilesConfig(kind="jsonl")
        )
        for at, (one, other) in enumerate(answers)
    ]
    starts = set()
    for model in map(tokenizer, TOKENIZERS):
        pairs, *_ = existing_sequences(rows, Encoding(model), name=lambda _, prompt: text_id(prompt))
        assert set(pairs.prompts) == {text_id(f"{ASKED} The ans")} != {text_id(ASKED)}
        starts.add(len(set(pairs.starts)))
    assert 2 in starts


@pytest.mark.parametrize("kind", [kind for kind in TOKENIZERS if kind not in ("plain", "no end")])
def test_of_several_turns_those_of_the_assistant_are_supervised(kind: str) -> None:
    model = tokenizer(kind)
    ids, supervised = by_us(model, ROWS["several turns"])
    ends, written = ends_of(model), []
    for row, marks in zip(ids, supervised, strict=True):
        turns: list[list[int]] = [[]]
        for token, marked in zip(row, marks, strict=True):
            if marked:
                turns[-1].append(token)
            elif turns[-1]:
                turns.append([])
        assert all(turn[-1] in ends and turn.count(turn[-1]) == 1 for turn in turns)
        written.append([model.decode(turn[:-1]).replace("<think>\n\n</think>\n\n", "").strip() for turn in turns])
    assert written == [["7", "10"], ["Go away", "11", "So"]]


@pytest.mark.parametrize("kind", ["pads with its end", "Llama 3", "R1", "Gemma", "several ends"])
def test_an_answer_that_ends_gets_no_second_end(kind: str) -> None:
    model = tokenizer(kind)
    ends = ends_of(model)
    for token in (model.decode([each]) for each in ends):
        row = {"prompt": said(ASKED), "chosen": answer(f"7{token}"), "rejected": answer(f"8{token}\n")}
        for ids in by_us(model, row)[0]:
            assert ids[-1] in ends
            assert ids[-2] not in ends


def test_what_a_template_begins_is_told_of_the_answer_and_written_once() -> None:
    from trl.rewards import think_format_reward

    model, asked = tokenizer("R1"), said(ASKED)
    begun = model.decode(begun_by_template(model, asked))
    assert begun == "<think>\n"
    assert think_format_reward([[{"content": begun + "add\n</think>\n7"}]]) == [1.0]
    ids, _ = by_us(model, ROWS["thoughts"])
    assert max(model.decode(row).count("<think>") for row in ids) <= 1
    for kind in TOKENIZERS:
        if kind != "R1":
            assert not begun_by_template(tokenizer(kind), asked)
    # An empty block of thoughts is closed, and so no beginning.
    assert not begun_by_template(tokenizer("Qwen3"), asked, {"enable_thinking": False})
    assert not begun_by_template(model, ASKED)
    assert not begun_by_template(model, said(ASKED, "It is"))


CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 3}}}]}
PLAIN = "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
DUE = "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def learnt(model: PreTrainedTokenizerBase, found: Answered) -> list[str]:
    """What is supervised, in its parts."""
    parts: list[list[int]] = [[]]
    for token, marked in zip(found.ids, found.supervised, strict=True):
        if marked:
            parts[-1].append(token)
        elif parts[-1]:
            parts.append([])
    return [model.decode(part) for part in parts if part]


def with_template(kind: str, template: str) -> PreTrainedTokenizerBase:
    model = copy.deepcopy(tokenizer(kind))
    model.chat_template = template
    return model


@pytest.mark.parametrize("arguments", [{"a": 3}, '{"a": 3}', {}], ids=str)
def test_what_tools_say_is_not_learnt_where_a_template_leaves_the_content_of_calls_out(arguments: object) -> None:
    # As those of Llama 3.1, gpt-oss and Gemma 4 do; those of tools name the call that they answer.
    model = with_template(
        "pads with its end",
        "{% for m in messages %}{% if m.tool_calls %}<|im_start|>assistant\n{{ m.tool_calls | tojson }}"
        "<|im_end|>\n{% elif m.role == 'tool' %}"
        "{{ messages[loop.index0 - 1].tool_calls[0].function.name }}: {{ m.content }}"
        f"{{% else %}}{PLAIN}{{% endif %}}{DUE}",
    )
    call = {**CALL, "tool_calls": [{"function": {"name": "add", "arguments": arguments}}]}
    turns = [call, {"role": "tool", "content": "seven"}, *answer("7")]
    (found,) = encode_answers(model, said(ASKED), [turns])
    one, other = learnt(model, found)
    assert json.loads(one.removesuffix("<|im_end|>")) == call["tool_calls"]
    assert other == "7<|im_end|>"


def test_what_a_tool_has_answered_within_a_turn_is_not_learnt() -> None:
    # As in Gemma 4, whose turn of a model holds its call, the answer to that and what is said of it.
    model = with_template(
        "pads with its end",
        "{% for m in messages %}{% if m.tool_calls %}<|im_start|>assistant\n{{ m.tool_calls | tojson }}"
        "{% if not loop.last %}[{{ messages[loop.index0 + 1].content }}]{% endif %}{{ m.content }}<|im_end|>\n"
        f"{{% elif m.role != 'tool' %}}{PLAIN}{{% endif %}}{DUE}",
    )
    turns = [{**CALL, "content": "So it is"}, {"role": "tool", "content": "seven"}, *answer("7")]
    (found,) = encode_answers(model, said(ASKED), [turns])
    call, *others = learnt(model, found)
    assert json.loads(call) == CALL["tool_calls"]
    assert others == ["So it is<|im_end|>", "7<|im_end|>"]


def test_an_answer_begins_where_it_is_due_though_thoughts_before_it_are_dropped() -> None:
    # As in gpt-oss, which also has a heading for each answer.
    model = with_template(
        "pads with its end",
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
        "{% if messages[-1].role == 'tool' %}{{ m.thinking }}{% endif %}final: {% endif %}"
        f"{{{{ m.content }}}}<|im_end|>\n{DUE}",
    )
    turns = [*answer("I add"), {"role": "tool", "content": "seven"}, *answer("7")]
    (found,) = encode_answers(model, said(ASKED), [[{**turn, "thinking": "hm"} for turn in turns]])
    assert learnt(model, found) == ["final: I add<|im_end|>", "final: 7<|im_end|>"]


def test_turns_that_a_template_leaves_out_are_not_learnt_nor_is_what_follows_them() -> None:
    users = f"{{% for m in messages %}}{{% if m.role != 'tool' %}}{PLAIN}{{% endif %}}{DUE}"
    model = with_template("pads with its end", users)
    turns = [*answer("7"), {"role": "tool", "content": "t"}, *said("Sure?", "Yes")]
    (found,) = encode_answers(model, said(ASKED), [turns])
    assert learnt(model, found) == ["7<|im_end|>", "Yes<|im_end|>"]


def test_an_earlier_answer_may_end_otherwise_than_the_last_one() -> None:
    # As in gpt-oss, where <|end|> ends what is no answer as well.
    model = with_template(
        "several ends",
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
        "{% if loop.last and m.role == 'assistant' %}<|endoftext|>{% else %}<|end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    )
    (found,) = encode_answers(model, said(ASKED), [answer("7", "Sure?", "Yes")])
    assert learnt(model, found) == ["7<|end|>", "Yes<|endoftext|>"]
    assert model.convert_tokens_to_ids("<|end|>") not in template_ends(model)


def test_a_token_before_the_end_of_a_turn_is_part_of_the_answer() -> None:
    # As in Command A; the end of a text after all turns, as in Phi 3, is not that of a turn.
    model = with_template("pads with its end", f"{{% for m in messages %}}{PLAIN}{DUE}".replace("<|im_end|>", "E"))
    model.chat_template = str(model.chat_template).replace("E", "<|im_start|><|im_end|>")
    assert not template_ends(model)
    assert template_ends(tokenizer("several ends")) == (
        tokenizer("several ends").convert_tokens_to_ids("<|end|>"),
    )
    (found,) = encode_answers(model, said(ASKED), [answer("7", "Sure?", "Yes")])
    assert learnt(model, found) == ["7<|im_start|><|im_end|>", "Yes<|im_start|><|im_end|>"]
