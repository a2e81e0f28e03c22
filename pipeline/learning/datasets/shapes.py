"""Rows of other programs in TRL's columns: ShareGPT's conversations and Alpaca's instructions.

A conversation of ShareGPT is a list of turns with ``from`` and ``value``, under ``conversations``; TRL renames all
three likewise (`trl.maybe_convert_to_chatml`), and axolotl and LLaMA-Factory say which role each speaker is. The
prompt of Alpaca is the instruction, with the input on the next line if there is one, as LLaMA-Factory joins them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.errors import DataError

_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "model", "bard", "bing"), "assistant"),
    **dict.fromkeys(("tool", "observation"), "tool"),
    "system": "system",
}
_TEXTS = ("prompt", "messages", "chosen", "rejected")
"""Columns of TRL's that say what a row is."""


def to_columns(columns: Mapping[str, Any], place: str) -> dict[str, Any]:
    """A row in TRL's columns, of one that may be in another program's.

    Raises:
        DataError: A speaker is unknown.
    """
    found = {name: _turns(value, place) for name, value in columns.items()}
    pair = [found.get(name) for name in ("chosen", "rejected")]
    if isinstance(found.get("prompt"), str) and all(isinstance(answer, list) for answer in pair):
        del found["prompt"]  # it is in both; as `trl.maybe_extract_prompt` has it
    elif isinstance(found.get("conversations"), list) and "prompt" not in found and None not in pair:
        found["prompt"] = _with_system(found.pop("conversations"), found)
    if any(found.get(name) is not None for name in _TEXTS):
        return found
    if isinstance(found.get("conversations"), list):
        found["messages"] = _with_system(found.pop("conversations"), found)
    elif isinstance(found.get("instruction"), str) and ("output" in found or "input" in found):
        _from_instruction(found)
    return found


def _from_instruction(columns: dict[str, Any]) -> None:
    """Make a prompt and a completion of a row of Alpaca; a conversation where it has a system prompt."""
    parts = (columns.pop("instruction"), columns.pop("input", None))
    columns["prompt"] = "\n".join(part for part in parts if isinstance(part, str) and part.strip())
    if "output" in columns and "completion" not in columns:
        columns["completion"] = columns.pop("output")
    turns = _with_system([{"role": "user", "content": columns["prompt"]}], columns)
    if len(turns) > 1:
        columns["prompt"] = turns
        if isinstance(answer := columns.get("completion"), str):
            columns["completion"] = [{"role": "assistant", "content": answer}]


def _turns(value: Any, place: str) -> Any:
    """Turns with role and content of those with ``from`` and ``value``; anything else as it is."""
    if isinstance(value, Mapping) and value.keys() == {"from", "value"}:
        value = [value]
    is_list = isinstance(value, list) and value and all(isinstance(turn, Mapping) for turn in value)
    if not is_list or not all({"from", "value"} <= turn.keys() for turn in value):
        return value
    if unknown := [turn["from"] for turn in value if turn["from"] not in _ROLES]:
        raise DataError(
            f"{place}: a turn is from {unknown[0]!r}; known are {', '.join(_ROLES)}. Write one of them, or leave "
            "the row out."
        )
    return [{"role": _ROLES[turn["from"]], "content": turn["value"]} for turn in value]


def _with_system(turns: list[Any], columns: dict[str, Any]) -> list[Any]:
    """A conversation with the system prompt that stands in a column beside it."""
    system = columns.get("system")
    if not isinstance(system, str) or not turns or not isinstance(turns[0], Mapping):
        return turns
    del columns["system"]
    if not system.strip() or turns[0].get("role") == "system":
        return turns
    return [{"role": "system", "content": system}, *turns]
