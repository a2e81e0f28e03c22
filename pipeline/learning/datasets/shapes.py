"""Rows of other programs in TRL's columns: ShareGPT's conversations and Alpaca's instructions.

A conversation of ShareGPT is a list of turns with ``from`` and ``value``, under ``conversations``; TRL renames all
three likewise (`trl.maybe_convert_to_chatml`), and axolotl and LLaMA-Factory say which role each speaker is. The
prompt of Alpaca is the instruction, with the input on the next line if there is one, as LLaMA-Factory joins them,
after the turns of its history. Tables hold turns as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pipeline.errors import DataError
from pipeline.learning.rewards.answers import list_in

_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "ai", "chatgpt", "model", "bot", "bard", "bing"), "assistant"),
    **dict.fromkeys(("tool", "observation"), "tool"),
    "system": "system",
}
_TALK = ("user", "assistant")
_TEXTS = ("prompt", "messages", "chosen", "rejected")
"""Columns of TRL's that say what a row is."""
_CONVERSATIONS = (*_TEXTS, "completion", "conversations")
_WRITTEN = re.compile(r"\s*\[\s*\{\s*([\"'])(?:role|content|from|value)\1\s*:")
"""How a list of turns begins that was written as text."""


def to_columns(columns: Mapping[str, Any], place: str) -> dict[str, Any]:
    """A row in TRL's columns, of one that may be in another program's.

    Raises:
        DataError: A speaker is unknown, or turns cannot be read.
    """
    found = {**columns, **{name: _turns(columns[name], name, place) for name in _CONVERSATIONS if name in columns}}
    if found.keys() & {"completion", "output", "messages", "conversations"} and str(
        found.get("label")
    ).lower() in ("true", "false"):
        found["label"] = str(found["label"]).lower() == "true"  # tables hold text
    pair = [found.get(name) for name in ("chosen", "rejected")]
    if isinstance(found.get("prompt"), str) and all(map(_is_whole, pair)):
        del found["prompt"]  # it is in both; as `trl.maybe_extract_prompt` has it
    elif isinstance(found.get("conversations"), list) and "prompt" not in found and None not in pair:
        found["prompt"] = found.pop("conversations")
    instructed = isinstance(found.get("instruction"), str) and not any(
        found.get(name) is not None for name in ("prompt", "messages")
    )
    if instructed and all(isinstance(answer, str) for answer in pair):
        _from_instruction(found)
    if any(found.get(name) is not None for name in _TEXTS):
        return found
    if isinstance(found.get("conversations"), list):
        found["messages"] = found.pop("conversations")
    elif instructed and ("output" in found or "input" in found):
        _from_instruction(found)
    return found


def _is_whole(answer: Any) -> bool:
    """Whether an answer is a conversation, with what was asked in it."""
    first = answer[0] if isinstance(answer, list) and answer else None
    return isinstance(first, Mapping) and first.get("role") != "assistant"


def _from_instruction(columns: dict[str, Any]) -> None:
    """Make a prompt and a completion of a row of Alpaca; a conversation where it has a system prompt or turns."""
    parts = (columns.pop("instruction"), columns.pop("input", None))
    columns["prompt"] = "\n".join(part for part in parts if isinstance(part, str) and part.strip())
    if "output" in columns and "completion" not in columns:
        columns["completion"] = columns.pop("output")
    history = columns.get("history")
    said = []
    if isinstance(history, list) and all(isinstance(pair, list) and len(pair) == len(_TALK) for pair in history):
        said = [
            {"role": role, "content": text} for pair in history for role, text in zip(_TALK, pair, strict=True)
        ]
        del columns["history"]
    turns = with_system([*said, {"role": "user", "content": columns["prompt"]}], columns)
    if len(turns) > 1:
        columns["prompt"] = turns
        if isinstance(answer := columns.get("completion"), str):
            columns["completion"] = [{"role": "assistant", "content": answer}]


def _turns(value: Any, name: str, place: str) -> Any:
    """Turns with role and content of those with ``from`` and ``value``, or of text; anything else as it is."""
    if isinstance(value, str) and _WRITTEN.match(value):
        said, value = value[:60], list_in(value)
        if value is None:
            raise DataError(
                f"{place}: '{name}' is a list of turns that was written as text, and not as JSON: {said!r}. Write "
                "it by json.dumps."
            )
    if isinstance(value, Mapping) and value and all(isinstance(each, list) for each in value.values()):
        # As `datasets` stores a sequence of turns.
        value = [dict(zip(value, turn, strict=True)) for turn in zip(*value.values(), strict=False)]
    if isinstance(value, Mapping) and value.keys() == {"from", "value"}:
        value = [value]
    is_list = isinstance(value, list) and value and all(isinstance(turn, Mapping) for turn in value)
    if is_list and all(isinstance(turn.get("role"), str) for turn in value):
        # Templates have names of their own for tools.
        roles = {name: role for name, role in _ROLES.items() if role != "tool"}
        return [{**turn, "role": roles.get(turn["role"].lower(), turn["role"])} for turn in value]
    if not is_list or not all({"from", "value"} <= turn.keys() for turn in value):
        return value
    if unknown := [turn["from"] for turn in value if str(turn["from"]) not in _ROLES]:
        raise DataError(
            f"{place}: a turn is from {unknown[0]!r}; known are {', '.join(_ROLES)}. Write one of them, or leave "
            "the row out."
        )
    return [
        {"role": _ROLES[turn["from"]], "content": turn["value"]}
        | {key: each for key, each in turn.items() if key not in ("from", "value")}
        for turn in value
    ]


def with_system(turns: list[Any], columns: dict[str, Any]) -> list[Any]:
    """A conversation with the system prompt that stands in a column beside it."""
    system = columns.get("system")
    if not isinstance(system, str) or not turns or not isinstance(turns[0], Mapping):
        return turns
    del columns["system"]
    if not system.strip() or turns[0].get("role") == "system":
        return turns
    return [{"role": "system", "content": system}, *turns]
