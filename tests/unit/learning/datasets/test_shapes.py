"""ShareGPT's and Alpaca's rows are TRL's columns; each other program's name of a speaker is a role."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.errors import DataError
from pipeline.learning.datasets.columns import to_columns

_ASK, _ANSWER = {"from": "human", "value": "a?"}, {"from": "gpt", "value": "b"}
_TURNS = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]
_SYSTEM = {"role": "system", "content": "Be kind."}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"conversations": [_ASK, _ANSWER], "id": 1}, {"messages": _TURNS, "id": 1}),
        ({"conversations": _TURNS}, {"messages": _TURNS}),
        # As `datasets` stores a sequence of turns.
        ({"conversations": {"from": ["human", "gpt"], "value": ["a?", "b"]}}, {"messages": _TURNS}),
        ({"messages": {"role": ["user", "ai"], "content": ["a?", "b"]}}, {"messages": _TURNS}),
        (
            {"prompt": "a?", "chosen": _TURNS[1:], "rejected": _TURNS[1:]},
            {"prompt": "a?", "chosen": _TURNS[1:], "rejected": _TURNS[1:]},
        ),
        ({"conversations": [{**_ASK, "weight": 0}]}, {"messages": [{**_TURNS[0], "weight": 0}]}),
        *(
            (
                {"prompt": "a?", "completion": "b", "label": given},
                {"prompt": "a?", "completion": "b", "label": label},
            )
            for given, label in (("False", False), ("true", True), ("spam", "spam"), (0, 0))
        ),
        ({"messages": [_ASK, _ANSWER]}, {"messages": _TURNS}),
        (
            {"messages": [{"role": "Human", "content": "a?"}, {"role": "gpt", "content": "b"}]},
            {"messages": _TURNS},
        ),
        (
            {"messages": [{"role": "observation", "content": "5"}]},
            {"messages": [{"role": "observation", "content": "5"}]},
        ),
        # Tables hold turns as text: as JSON, or as Python prints them.
        ({"messages": json.dumps(_TURNS)}, {"messages": _TURNS}),
        ({"conversations": str([_ASK, _ANSWER])}, {"messages": _TURNS}),
        ({"prompt": json.dumps(_TURNS[:1]), "answer": "[1]"}, {"prompt": _TURNS[:1], "answer": "[1]"}),
        ({"prompt": '[{"a": 1}]', "further": [_ASK]}, {"prompt": '[{"a": 1}]', "further": [_ASK]}),
        (
            {"prompt": [_ASK], "chosen": [_ANSWER], "rejected": [_ANSWER]},
            {"prompt": _TURNS[:1], "chosen": _TURNS[1:], "rejected": _TURNS[1:]},
        ),
        ({"instruction": "Add.", "input": "1 2", "output": "3"}, {"prompt": "Add.\n1 2", "completion": "3"}),
        ({"instruction": "Add.", "input": "", "output": "3"}, {"prompt": "Add.", "completion": "3"}),
        (
            {"instruction": "a?", "output": "b", "system": "Be kind."},
            {"prompt": [_SYSTEM, _TURNS[0]], "completion": _TURNS[1:]},
        ),
        (
            {"instruction": "a?", "input": "", "output": "b", "history": [["c", "d"]]},
            {
                "prompt": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}, _TURNS[0]],
                "completion": _TURNS[1:],
            },
        ),
        (
            {"instruction": "Add.", "input": "1 2", "history": [], "chosen": "3", "rejected": "4"},
            {"prompt": "Add.\n1 2", "chosen": "3", "rejected": "4"},
        ),
        (
            {"conversations": [_ASK], "chosen": _ANSWER, "rejected": _ANSWER},
            {"prompt": _TURNS[:1], "chosen": _TURNS[1:], "rejected": _TURNS[1:]},
        ),
        ({"prompt": "a?", "chosen": _TURNS, "rejected": _TURNS}, {"chosen": _TURNS, "rejected": _TURNS}),
        ({"prompt": "a?", "chosen": "b", "rejected": "c"}, {"prompt": "a?", "chosen": "b", "rejected": "c"}),
        ({"prompt": "a", "output": "b"}, {"prompt": "a", "output": "b"}),
        ({"prompt": "a", "instruction": "b", "output": "c"}, {"prompt": "a", "instruction": "b", "output": "c"}),
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
