"""Rows in TRL's columns: every form that is allowed, and what is said of every other."""

import json
from typing import Any

import pytest

from pipeline.errors import ConfigError, DataError
from pipeline.learning.datasets.base import Row
from pipeline.learning.datasets.chat import template_arguments
from pipeline.learning.datasets.from_files import (
    FilesConfig,
    make_row,
    renamed,
    template_fields,
    to_columns,
)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


_BOTH = {"chosen": [user("a"), assistant("b")], "rejected": [user("a"), assistant("c")]}


def row(data: dict[str, Any], **settings: Any) -> Row:
    return make_row(7, data, "f.jsonl:3", FilesConfig(kind="jsonl", **settings))


def test_answers_to_a_conversation_in_other_forms() -> None:
    expected = Row(7, [user("a")], chosen=[assistant("b")], rejected=[assistant("c")])
    assert row({"prompt": [user("a")], "chosen": "b", "rejected": "c"}) == expected
    assert row({"prompt": [user("a")], "chosen": assistant("b"), "rejected": assistant("c")}) == expected
    # Whole conversations beside their prompt, as in UltraFeedback.
    assert row({"prompt": "a", **_BOTH}) == row({"prompt": [user("a")], **_BOTH}) == expected
    found = row({"prompt": [user("a")], "completion": _BOTH["chosen"]})
    assert found == Row(7, [user("a")], completion=[assistant("b")])
    assert row({"prompt": [user("a")], "chosen": [assistant("b")], "rejected": [assistant("c")]}) == expected
    # Parquet gives every message all keys that any has.
    assert row({"prompt": [{**user("a"), "name": None}]}).prompt == [user("a")]


def test_parts_of_text_are_one_text_and_others_are_refused() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert row({"prompt": [{"role": "user", "content": parts[:1]}]}).prompt == [user("a")]
    assert row({"prompt": [{"role": "user", "content": parts}]}).prompt == [user("a\nb")]
    with pytest.raises(DataError, match="part of type 'image'"):
        row({"prompt": [{"role": "user", "content": [{"type": "image"}, *parts]}]})


def test_what_calls_and_tools_say_is_null_stays() -> None:
    calls = [{"function": {"name": "add", "arguments": {"a": 3, "city": None}}}]
    turn = {"role": "assistant", "content": None, "tool_calls": calls, "refusal": None}
    tools = [{"name": "add", "parameters": {"city": {"type": "string", "default": None}}}]
    found = row({"prompt": [user("a")], "completion": [turn], "tools": tools})
    assert found.completion == [{"role": "assistant", "content": "", "tool_calls": calls}]
    for given in (tools, json.dumps(tools)):
        assert template_arguments({"tools": given, "chat_template_kwargs": {"a": None}}) == {"tools": tools}


def test_messages_end_before_the_assistants_last_turn() -> None:
    turns = [user("a"), assistant("b"), user("c")]
    assert row({"messages": [*turns, assistant("d")]}) == Row(7, turns, completion=[assistant("d")], whole=True)
    assert row({"messages": turns}) == Row(7, turns, whole=True)
    assert row({"prompt": None, "messages": turns}) == Row(7, turns, whole=True)


@pytest.mark.parametrize(
    ("chosen", "rejected", "prompt", "rests"),
    [
        ("The sky is blue.", "The sky is green.", "The sky is", (" blue.", " green.")),
        ("2+2=4", "2+2=5", "2+2=", ("4", "5")),
        (_BOTH["chosen"], _BOTH["rejected"], [user("a")], ([assistant("b")], [assistant("c")])),
        # Both the same, or one the beginning of the other.
        (_BOTH["chosen"], _BOTH["chosen"], [user("a")], ([assistant("b")], [assistant("b")])),
        (
            _BOTH["chosen"],
            [*_BOTH["chosen"], user("c")],
            [user("a")],
            ([assistant("b")], [assistant("b"), user("c")]),
        ),
    ],
)
def test_a_prompt_that_two_answers_share(chosen: Any, rejected: Any, prompt: Any, rests: Any) -> None:
    found = row({"chosen": chosen, "rejected": rejected})
    assert (found.prompt, (found.chosen, found.rejected)) == (prompt, rests)


def test_template_chat_and_system_prompt() -> None:
    data = {"question": "1+1?", "n": 3, "completion": "2"}
    assert row(data, prompt_template="{n}) {question} {{x}}").prompt == "3) 1+1? {x}"
    found = row({"prompt": "a", "completion": "b"}, chat=True, system_prompt="s")
    assert found.prompt == [{"role": "system", "content": "s"}, user("a")]
    assert found.completion == [assistant("b")]
    other = row({"prompt": [{"role": "system", "content": "old"}, user("a")]}, system_prompt="s")
    assert other.prompt == [{"role": "system", "content": "s"}, user("a")]


@pytest.mark.parametrize(
    ("data", "settings"),
    [
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, {}),
        ({"prompt": [user("a")], "completion": [assistant("b")]}, {}),
        ({"prompt": "a", "completion": "b"}, {"chat": True}),
        ({"messages": [{"role": "system", "content": " "}, user("a"), assistant("b")]}, {}),
    ],
)
def test_the_system_prompt_of_a_row_is_the_first_turn(data: dict[str, Any], settings: dict[str, Any]) -> None:
    system = {"role": "system", "content": "Be kind."}
    whole = not data.keys().isdisjoint({"messages", "conversations"})
    expected = Row(7, [system, user("a")], completion=[assistant("b")], whole=whole)
    assert row({**data, "system": "Be kind."}, **settings) == expected
    assert row({**data, "system": "Other."}, system_prompt="Be kind.", **settings) == expected
    assert row({"messages": [system, *_BOTH["chosen"]], "system": "Other."}).columns == {"system": "Other."}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            {"question": "a"},
            r"no prompt. The columns are question; allowed are prompt \| prompt, completion .*messages",
        ),
        ({"prompt": None}, "f.jsonl:3: the prompt is empty"),
        ({"prompt": "", "instruction": "a"}, r"the prompt is empty\. .* The columns are prompt, instruction\."),
        ({"prompt": [user(" ")]}, "the prompt is empty"),
        ({"prompt": [{"role": "user", "content": None}]}, "as text, found role: str, content: NoneType"),
        ({"prompt": 7}, "'prompt' must be text or a list of {role, content}, found int"),
        ({"prompt": ["a"]}, "every message in 'prompt' needs 'role' and 'content' as text, found str"),
        (
            {"prompt": "a", "chosen": "b"},
            "go together, and rejected is null or not there. .* the columns are prompt, chosen",
        ),
        ({"chosen": "a b", "rejected": "c d"}, "share no beginning"),
        ({"chosen": "a b", "rejected": [assistant("d")]}, "must both be text or both be conversations"),
        ({"messages": [assistant("b")]}, "nothing before the assistant's turn"),
        (
            {"prompt": "a", "chosen": [assistant("b")], "rejected": [assistant("c")]},
            "'prompt' is text, 'chosen' is",
        ),
        (
            {"prompt": [user("a")], "completion": [user("A"), assistant("b")]},
            "'completion' begins with a turn of the user",
        ),
        ({"prompt": "a", "completion": [assistant("b")]}, "'prompt' is text, 'completion' is a conversation"),
        ({"prompt": {"0": "a", "1": "b"}, "n": {"0": 1}}, r"found 0: str, 1: str\. .*orient='records'"),
        (
            {"train": [{"prompt": "a"}], "test": []},
            "in a file of its own for each split.*columns={prompt: COLUMN}",
        ),
        ({"prompt": "a", "completions": ["b"]}, "rewards are given something else as 'completions'"),
    ],
)
def test_a_row_that_cannot_be_used_is_refused_with_its_place(data: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        row(data)
    assert str(caught.value).startswith("f.jsonl:3: ")


def test_a_template_that_would_change_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="prompt_template changes nothing"):
        row({"prompt": "a", **_BOTH}, prompt_template="Say {prompt}")


@pytest.mark.parametrize("template", ["{a.b}", "{a[0]}", "{0}", "{}", "{a!r}", "{a:>9}", "{a", "a}"])
def test_a_template_holds_plain_names_only(template: str) -> None:
    with pytest.raises(ConfigError, match="prompt_template="):
        template_fields(template)


def test_renaming() -> None:
    assert renamed({"q": "a", "prompt": "old", "x": 1}, {"prompt": "q"}, "p") == {"prompt": "a", "x": 1}
    assert renamed({"a": 1, "b": 2}, {"a": "b", "b": "a"}, "p") == {"a": 2, "b": 1}
    inner = {"m": {"style": "rule", "x": {"y": "5"}}}
    assert renamed(inner, {"solution": "m.x.y"}, "p") == {**inner, "solution": "5"}
    assert renamed({"m.x": "6", **inner}, {"solution": "m.x"}, "p") == {**inner, "solution": "6"}
    as_text = {"m": json.dumps(inner["m"])}
    assert renamed(as_text, {"solution": "m.x.y"}, "p") == {**as_text, "solution": "5"}
    assert renamed({"m": None}, {"solution": "m.x.y"}, "p") == {"m": None, "solution": None}
    for odd in ("m.y", "m.style.x", "n.x"):
        with pytest.raises(DataError, match=rf"unknown column '{odd}'"):
            renamed(inner, {"solution": odd}, "p")
    said = [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "5"}]
    by_name = {"solution": "completion", "messages": "chat"}
    assert renamed({"chat": said}, by_name, "p") == {"messages": said, "solution": "5"}
    with pytest.raises(DataError, match="unknown column 'completion'"):
        renamed({"chat": said[:1]}, by_name, "p")
    with pytest.raises(
        DataError, match=r"p: columns={prompt: qestion}: .* Did you mean 'question'\? Known: question, x\."
    ):
        renamed({"question": 1, "x": 2}, {"prompt": "qestion"}, "p")
    with pytest.raises(DataError, match=r"The other way round it is columns={solution: answer}\."):
        renamed({"prompt": "a", "answer": "5"}, {"answer": "solution"}, "p")


@pytest.mark.parametrize(
    ("prompt", "rest"),
    [
        ("\n\nHuman: Tell me.\n\nAssistant:", " It is"),
        ("### Instruction:\nAdd.\n\n### Response:", "\nIt is "),
        ("Q: 2 + 2?\nA:", " It is "),
        ("What is 2 + 2?\n", "It is a"),
    ],
)
def test_a_prompt_ends_where_a_turn_does(prompt: str, rest: str) -> None:
    found = row({"chosen": f"{prompt}{rest}one", "rejected": f"{prompt}{rest}two"})
    assert (found.prompt, found.chosen, found.rejected) == (prompt, f"{rest}one", f"{rest}two")


# -- test shapes -------------------------------------------------------------------------------------------------
# ShareGPT's and Alpaca's rows are TRL's columns; each other program's name of a speaker is a role.


_ASK, _ANSWER = {"from": "human", "value": "a?"}, {"from": "gpt", "value": "b"}
_TURNS = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]
_SYSTEM = {"role": "system", "content": "Be kind."}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"conversations": [_ASK, _ANSWER], "id": 1}, {"messages": _TURNS, "id": 1}),
        (
            {"conversations": [{"from": "User", "value": "a?"}, {"from": "GPT", "value": "b"}]},
            {"messages": _TURNS},
        ),
        # As `datasets` stores a sequence of turns.
        ({"conversations": {"from": ["human", "gpt"], "value": ["a?", "b"]}}, {"messages": _TURNS}),
        *(
            (
                {"prompt": "a?", "completion": "b", "label": given},
                {"prompt": "a?", "completion": "b", "label": label},
            )
            for given, label in (
                ("False", False),
                ("true", True),
                ("0", False),
            )
        ),
        (
            {"messages": [{"role": "Human", "content": "a?"}, {"role": "gpt", "content": "b"}]},
            {"messages": _TURNS},
        ),
        # Tables hold turns as text: as JSON, or as Python prints them.
        ({"messages": json.dumps(_TURNS)}, {"messages": _TURNS}),
        ({"conversations": str([_ASK, _ANSWER])}, {"messages": _TURNS}),
        ({"prompt": json.dumps(_TURNS[:1]), "answer": "[1]"}, {"prompt": _TURNS[:1], "answer": "[1]"}),
        ({"prompt": '[{"a": 1}]', "further": [_ASK]}, {"prompt": '[{"a": 1}]', "further": [_ASK]}),
        ({"instruction": "Add.", "input": "1 2", "output": "3"}, {"prompt": "Add.\n1 2", "completion": "3"}),
        (
            {"instruction": "a?", "output": "b", "system": "Be kind."},
            {"prompt": [_SYSTEM, _TURNS[0]], "completion": _TURNS[1:]},
        ),
        (
            {"conversations": [_ASK], "chosen": _ANSWER, "rejected": _ANSWER},
            {"prompt": _TURNS[:1], "chosen": _TURNS[1:], "rejected": _TURNS[1:]},
        ),
        ({"prompt": "a?", "chosen": _TURNS, "rejected": _TURNS}, {"chosen": _TURNS, "rejected": _TURNS}),
        # As in UltraChat and No Robots; elsewhere a conversation beside a prompt is a column as any other.
        ({"prompt": "a?", "messages": [_SYSTEM, *_TURNS]}, {"messages": [_SYSTEM, *_TURNS]}),
        ({"prompt": "x", "messages": _TURNS}, {"prompt": "x", "messages": _TURNS}),
    ],
)
def test_rows_of_other_programs_have_the_columns_of_trl(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert to_columns(given, "a:1") == expected


def test_a_speaker_that_nobody_knows_is_refused() -> None:
    with pytest.raises(DataError, match="narrator"):
        to_columns({"conversations": [{"from": "narrator", "value": "a"}, _ANSWER]}, "a:1")


def test_turns_that_were_cut_off_as_text_are_refused() -> None:
    with pytest.raises(DataError, match=r"a:1: 'messages' is a list of turns .*json\.dumps"):
        to_columns({"messages": json.dumps(_TURNS)[:-5]}, "a:1")
