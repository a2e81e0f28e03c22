"""Conversations by a chat template: with the row's arguments, one date on every day, and readable refusals."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from pipeline.config.plain import with_schema
from pipeline.errors import ConfigError, DataError
from pipeline.learning.datasets.base import Row
from pipeline.learning.datasets.chat import (
    MARK,
    TemplateOfFolder,
    dated,
    encode_answers,
    prompt_text,
    refusal_of,
    rendered,
    template_arguments,
)
from pipeline.learning.datasets.from_files import FilesConfig, FilesDataset, make_row
from pipeline.learning.datasets.prepared import encode_prompts
from pipeline.learning.rewards.probe import answer

USER = [{"role": "user", "content": "u"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def tokenizer(template: str = "", *, single: str = "<s> $A") -> PreTrainedTokenizerFast:
    """One token a word; <s> before a text, and what `single` says behind it."""
    inner = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "a": 2, "b": 3, "?": 4}, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<s>", 0), ("</s>", 1)])
    made = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="?")
    made.chat_template = template or None
    return made


@pytest.mark.parametrize("single", ["<s> $A", "<s> $A </s>", "$A </s>", "$A", "$A </s> </s>"])
@pytest.mark.parametrize("text", ["a b", "<s> a b", "a b </s>", "<s> a b </s>", "<s> <s> a b"])
def test_a_prompt_of_text_ends_in_no_end_and_begins_once(single: str, text: str) -> None:
    model = tokenizer(single=single)
    ids = encode_prompts(model, [text])[0]
    assert ids[-2:] == [2, 3]
    if "<s>" in single:
        assert ids == [0, 2, 3]
    if "</s>" not in text and "<s> <s>" not in text:
        (found,) = encode_answers(model, text, [" a"])  # what is read is what is trained on
        assert (found.whole, found.ids) == (True, [*ids, 2, 1])


def test_an_end_that_a_prompt_of_text_has_is_read_and_not_learnt() -> None:
    (found,) = encode_answers(tokenizer(), "a b </s>", [" a"])
    assert found.ids == [0, 2, 3, 1, 2, 1]
    assert found.supervised == [False] * 4 + [True] * 2


def test_a_template_is_told_one_date_on_any_day() -> None:
    fixed = tokenizer(dated("{{ strftime_now('%d %b %Y') }}", "2020-02-29"))
    assert fixed.apply_chat_template(USER, tokenize=False) == "29 Feb 2020"
    assert rendered(fixed, USER, {"strftime_now": "2026-11-27"}) == "27 Nov 2026"
    asking = tokenizer("{{ strftime_now('%d %b %Y') }}|{{ messages[0].content }}")
    assert rendered(asking, USER) == "26 Jul 2024|u"
    assert rendered(asking, USER, {"strftime_now": "2026-11-27"}) == "27 Nov 2026|u"
    asking.chat_template = "\n{{ strftime_now('%-d.%-m.%y') }}{% for m in messages %}{{ m.content }}{% endfor %}"
    assert rendered(asking, USER) == "\n26.7.24u"
    asking.chat_template = "{{ strftime_now('%d %b %Y') }}"
    # The clock of transformers is as it was.
    assert asking.apply_chat_template(USER, tokenize=False).startswith(datetime.now().strftime("%d %b %Y"))


def test_columns_and_settings_reach_the_template() -> None:
    thinking = tokenizer("{{ tools | length if tools else 0 }}{{ enable_thinking }}{{ strftime_now('%Y') }}")
    config = FilesConfig(kind="jsonl", chat_template_kwargs={"enable_thinking": True}, date="2020-02-03")
    own = {"prompt": USER, "tools": [TOOL], "chat_template_kwargs": {"enable_thinking": False, "other": None}}
    for columns, text in (({"prompt": USER}, "0True2020"), (own, "1False2020")):
        row = make_row(0, columns, "here", config)
        assert prompt_text(thinking, row.prompt, template_arguments(row.columns)) == text  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "columns",
    [
        {"tools": "no json"},
        {"tools": ["add"]},
        {"chat_template_kwargs": [1]},
        {"chat_template_kwargs": {"tokenize": True}},
    ],
    ids=str,
)
def test_arguments_that_no_template_can_be_given_are_refused_with_their_row(columns: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"line 3.*`(tools|chat_template_kwargs)`"):
        make_row(0, {"prompt": USER, **columns}, "line 3", FilesConfig(kind="jsonl"))


@pytest.mark.parametrize("config", [{"date": "yesterday"}, {"chat_template_kwargs": {"padding": True}}], ids=str)
def test_settings_that_cannot_be_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        FilesDataset(FilesConfig(kind="jsonl", path="a", **config))


@pytest.mark.parametrize(
    ("template", "turns", "advice"),
    [
        ("{{ raise_exception('System role not supported') }}", ["system", "user"], "system_prompt=null"),
        ("{{ raise_exception('roles must alternate') }}", ["user", "user"], "another model"),
        ("{{ messages[0].content.nothing.more }}", ["user"], "another model"),
        ("{{ 1 // 0 }}", ["user"], "another model"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", ["user"], "another model"),
    ],
    ids=["no system", "alternate", "broken", "arithmetic", "recursion"],
)
def test_what_a_template_refuses_is_told_with_a_way_out(template: str, turns: list[str], advice: str) -> None:
    with pytest.raises(DataError, match=advice):
        prompt_text(tokenizer(template), [{"role": role, "content": "x"} for role in turns])


def test_a_template_that_takes_what_is_said_in_parts_alone_gets_it_so() -> None:
    """As those of SmolVLM and Idefics, which else write turns that say nothing."""
    parts = "{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}{% endif %}{% endfor %}"
    seeing = tokenizer(f"{{% for m in messages %}}{{{{ m.role }}}}: {parts}.{{% endfor %}}")
    turns = [{"role": "system", "content": "s"}, *USER, {"role": "assistant", "content": "a"}]
    assert rendered(seeing, turns) == "system: s.user: u.assistant: a."
    assert prompt_text(seeing, turns).endswith("assistant: a")
    assert MARK in prompt_text(seeing, [*turns[:1], {"role": "user", "content": MARK}])


def test_what_the_template_of_a_folder_refuses_is_found_without_its_tokenizer(tmp_path: Path) -> None:
    own = tokenizer(
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
        "{% endif %}{{ m.content }}{% endfor %}{{ strftime_now('%Y') }}"
    )
    own.save_pretrained(tmp_path)
    read = TemplateOfFolder(tmp_path)
    assert prompt_text(read, USER) == prompt_text(own, USER) == "<s>u2024"
    system = [{"role": "system", "content": "s"}]
    assert refusal_of(read, Row(0, USER)) == ""
    assert "no system" in refusal_of(read, Row(0, [*system, *USER]))
    assert "no system" in refusal_of(read, Row(0, USER, chosen=system, rejected=USER))


def test_answers_that_a_template_writes_otherwise_are_not_refused(tmp_path: Path) -> None:
    # That of R1 leaves thoughts out, and those of Llama 3.1 the content of calls.
    own = tokenizer(
        "{% for m in messages %}{{ m.tool_calls | tojson if m.tool_calls else m.content.split('</think>')[-1] }}"
        "{% endfor %}"
    )
    own.save_pretrained(tmp_path)
    thought = [{"role": "assistant", "content": "<think>hm</think>a"}]
    call = [{"role": "assistant", "content": "c", "tool_calls": [{"name": "add", "arguments": {}}]}]
    assert refusal_of(TemplateOfFolder(tmp_path), Row(0, USER, chosen=thought, rejected=call)) == ""
    own.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    own.save_pretrained(tmp_path)
    assert "tool_calls" in refusal_of(TemplateOfFolder(tmp_path), Row(0, USER, chosen=thought, rejected=call))


def test_arguments_that_a_template_does_not_read_are_told(tmp_path: Path) -> None:
    tokenizer("{{ enable_thinking }}").save_pretrained(tmp_path / "model")
    row = {"prompt": USER, "tools": [TOOL], "chat_template_kwargs": {"enable_thinking": False, "thinking": True}}
    said = [{"role": "assistant", "content": "a", "reasoning_content": "so", "id": "7"}]
    lines = [
        {**row, "prompt": [{"role": "user", "content": f"u{n}", "weight": 0}], "completion": said, "solution": "1"}
        for n in range(30)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = FilesConfig(kind="jsonl", path=str(tmp_path / "rows.jsonl"), date="2026-11-27")
    warnings = answer({"mine": with_schema(config)}, ["mine"], {"hf": str(tmp_path / "model")})["warnings"]
    [told] = [warning for warning in warnings if "does not read" in warning]
    assert "does not read tools, thinking, weight, reasoning_content, " in told


def test_rows_that_a_template_refuses_are_told_before_anything_starts(tmp_path: Path) -> None:
    own = tokenizer("{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}")
    own.save_pretrained(tmp_path / "model")
    rows = [[*([{"role": "system", "content": "s"}] if n == 7 else []), *USER] for n in range(30)]
    for n, row in enumerate(rows):
        row[-1] = {"role": "user", "content": f"u{n}"}
    text = "".join(json.dumps({"prompt": row, "solution": "1"}) + "\n" for row in rows)
    (tmp_path / "rows.jsonl").write_text(text)
    config = FilesConfig(kind="jsonl", path=str(tmp_path / "rows.jsonl"))
    said = answer({"mine": with_schema(config)}, ["mine"], {"hf": str(tmp_path / "model")})
    [problem] = said["problems"]
    assert problem.startswith(f"datasets.mine: {tmp_path / 'rows.jsonl'}:8: ")
    assert "datasets.mine.system_prompt=null" in problem
    assert answer({"mine": with_schema(config)}, ["mine"])["problems"] == []
