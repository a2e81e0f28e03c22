"""Define datasets with rows in files or on the hub: their settings, and the conversion of file rows to our rows.

Columns are TRL's. A row that cannot be used is rejected with its place.

`prepare` reads such a dataset once; chains open the output of `prepare`.
"""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pipeline.config.schema import (
    BY_CONTENT,
    Config,
    DatasetConfig,
    StageChoice,
    file_or_folder,
    hint,
    model_text,
    number,
    option,
)
from pipeline.errors import ConfigError, DataError, unknown_name
from pipeline.files import file_sha256
from pipeline.learning.datasets import chat, files
from pipeline.learning.datasets.base import Dataset, Message, Row, Text
from pipeline.learning.rewards.answers import list_in
from pipeline.learning.rewards.calling import GIVEN

# -- shapes ------------------------------------------------------------------------------------------------------
# Rows of other programs in TRL's columns: ShareGPT's conversations and Alpaca's instructions. A conversation of
# ShareGPT is a list of turns with ``from`` and ``value``, under ``conversations``; TRL renames all three in the
# same way (`trl.maybe_convert_to_chatml`), and axolotl and LLaMA-Factory define the role of each speaker. The
# prompt of Alpaca is the instruction, with the input on the next line if there is one, as in LLaMA-Factory. Tables
# hold turns as text.


_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "ai", "chatgpt", "model", "bot", "bard", "bing"), "assistant"),
    **dict.fromkeys(("tool", "observation"), "tool"),
    "system": "system",
}
_TEXTS = ("prompt", "messages", "chosen", "rejected")
"""TRL's columns that decide the type of a row."""
_CONVERSATIONS = (*_TEXTS, "completion", "conversations")
_LABELS = {"true": True, "1": True, "false": False, "0": False}
"""Values of `label`, whether a completion is wanted, that tables write as text."""
_WRITTEN = re.compile(r"\s*\[\s*\{\s*([\"'])(?:role|content|from|value)\1\s*:")
"""Matches the beginning of a list of turns that was written as text."""


def to_columns(columns: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Convert a row, possibly in another program's columns, to TRL's columns.

    Raises:
        DataError: A speaker is unknown, or turns cannot be read.
    """
    found = {**columns, **{name: _turns(columns[name], name, place) for name in _CONVERSATIONS if name in columns}}
    if found.keys() & {"completion", "output", "messages", "conversations"} and isinstance(
        label := found.get("label"), str
    ):
        found["label"] = _LABELS.get(label.lower(), label)
    pair = [found.get(name) for name in ("chosen", "rejected")]
    if isinstance(found.get("prompt"), str) and all(map(_is_whole, pair)):
        del found["prompt"]  # both answers contain the prompt, as in `trl.maybe_extract_prompt`
    elif found.get("completion") is None and pair == [None, None] and _is_first_question(found):
        del found["prompt"]
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
    """Return whether an answer is a conversation that includes the question."""
    first = answer[0] if isinstance(answer, list) and answer else None
    return isinstance(first, Mapping) and first.get("role") != "assistant"


def _is_first_question(columns: Mapping[str, Any]) -> bool:
    """Return whether the prompt repeats the first question of an answered conversation, as in UltraChat."""
    asked, turns = columns.get("prompt"), columns.get("messages")
    if not isinstance(asked, str) or not isinstance(turns, list) or not _is_whole(turns):
        return False
    said = [(turn.get("role"), turn.get("content")) for turn in turns if isinstance(turn, Mapping)]
    return said[-1][0] == "assistant" and asked == next((text for role, text in said if role == "user"), None)


def _from_instruction(columns: dict[str, Any]) -> None:
    """Convert a row of Alpaca to prompt and completion; to a conversation if it has a system prompt."""
    parts = (columns.pop("instruction"), columns.pop("input", None))
    columns["prompt"] = "\n".join(part for part in parts if isinstance(part, str) and part.strip())
    if "output" in columns and "completion" not in columns:
        columns["completion"] = columns.pop("output")
    turns = with_system([{"role": "user", "content": columns["prompt"]}], columns)
    if len(turns) > 1:
        columns["prompt"] = turns
        if isinstance(answer := columns.get("completion"), str):
            columns["completion"] = [{"role": "assistant", "content": answer}]


def _turns(value: Any, name: str, place: str) -> Any:
    """Convert turns with ``from`` and ``value``, or written as text, to role and content.

    Return other values unchanged.
    """
    if isinstance(value, str) and _WRITTEN.match(value):
        said, value = value[:60], list_in(value)
        if value is None:
            raise DataError(
                f"{place}: '{name}' is a list of turns that was written as text, and not as JSON: {said!r}. Write "
                "it by json.dumps."
            )
    if isinstance(value, Mapping) and value and all(isinstance(each, list) for each in value.values()):
        # `datasets` stores a sequence of turns in this way.
        value = [dict(zip(value, turn, strict=True)) for turn in zip(*value.values(), strict=False)]
    if isinstance(value, Mapping) and value.keys() == {"from", "value"}:
        value = [value]
    is_list = isinstance(value, list) and value and all(isinstance(turn, Mapping) for turn in value)
    if is_list and all(isinstance(turn.get("role"), str) for turn in value):
        # Templates have their own names for tools.
        roles = {name: role for name, role in _ROLES.items() if role != "tool"}
        return [{**turn, "role": roles.get(turn["role"].lower(), turn["role"])} for turn in value]
    if not is_list or not all({"from", "value"} <= turn.keys() for turn in value):
        return value
    if unknown := [turn["from"] for turn in value if str(turn["from"]).lower() not in _ROLES]:
        raise DataError(
            f"{place}: a turn is from {unknown[0]!r}; known are {', '.join(_ROLES)}. Write one of them, or leave "
            "the row out."
        )
    return [
        {"role": _ROLES[str(turn["from"]).lower()], "content": turn["value"]}
        | {key: each for key, each in turn.items() if key not in ("from", "value")}
        for turn in value
    ]


def with_system(turns: list[Any], columns: dict[str, Any]) -> list[Any]:
    """Add the system prompt from the column `system` to a conversation."""
    system = columns.get("system")
    if not isinstance(system, str) or not turns or not isinstance(turns[0], Mapping):
        return turns
    own = str(turns[0].get("content") or "").strip() if turns[0].get("role") == "system" else None
    if own and system.strip() not in ("", own):
        return turns  # the column stays and is reported
    del columns["system"]
    if own or not system.strip():
        return turns
    return [{"role": "system", "content": system}, *turns[own is not None :]]


ANSWERS = ("completion", "chosen", "rejected")
ALLOWED = "prompt | prompt, completion | prompt, chosen, rejected | chosen, rejected | messages"
_ANSWER_MARK = re.compile(
    r"(?:^|\n)[ \t]*(?:#+ ?)?(?:Assistant|ASSISTANT|Answer|Response|Bot|AI|GPT|Model|A)[ \t]*:"
    r"|<\|im_start\|>assistant\n|<\|start_header_id\|>assistant<\|end_header_id\|>\n\n|<start_of_turn>model\n"
    r"|<\|assistant\|>\n?|<\|Assistant\|>|<\uff5cAssistant\uff5c>|\[/INST\]|ASSISTANT:|TL;DR:"
)
"""Marks after which an answer follows, as in HH-RLHF, Alpaca and TL;DR, and in chat templates."""
LONGEST_TEXT = 1 << 21
"""Largest length of a prompt or an answer in characters. No model reads that many tokens, and a tokenizer takes
400 bytes per character."""


def naming(column: str) -> str:
    """Format the setting that maps a column of the file, as typed in a shell."""
    return f"'datasets.NAME.columns={{{column}: COLUMN}}'"


def of_dataset(said: object, name: str) -> str:
    """Insert the name of a dataset into the settings in a message."""
    return str(said).replace("datasets.NAME", f"datasets.{name}")


def renamed(data: Mapping[str, Any], columns: Mapping[str, str], place: str) -> dict[str, Any]:
    """Rename columns to our names.

    Args:
        data: The file's columns.
        columns: Our name -> the file's name, or dotted names for a value inside a column. The name `completion`
            means the text of the last turn in a row that is a conversation.
        place: Place of the row, for messages.

    Raises:
        DataError: The file has no column of that name.
    """
    found: dict[str, Any] = {}
    for ours, theirs in columns.items():
        try:
            found[ours] = _inside(data, theirs)
        except KeyError:
            named = {name: data[of] for name, of in columns.items() if of in data}
            if theirs == "completion" and (answer := _last_answer({**data, **named}, place)) is not None:
                found[ours] = answer
                continue
            turned = f" The other way round it is columns={{{theirs}: {ours}}}." if ours in data else ""
            unknown = unknown_name("column", theirs, map(str, data))
            raise DataError(f"{place}: columns={{{ours}: {theirs}}}: {unknown}{turned}") from None
    kept = {name: value for name, value in data.items() if name not in columns.values()}
    return {**kept, **found}


def _last_answer(data: Mapping[str, Any], place: str) -> str | None:
    """Return the assistant's last turn as text, in a row that is a conversation.

    None if it is none, or ends otherwise.
    """
    columns = to_columns(data, place)
    if not _split_messages(columns, place) or "completion" not in columns:
        return None
    text: str = columns["completion"][-1]["content"]
    return text


def _inside(data: Mapping[str, Any], name: str) -> Any:
    """Return a column, or the value inside one by dotted names; KeyError if there is neither."""
    if name in data or "." not in name:
        return data[name]
    outer, _, inner = name.partition(".")
    if (held := data[outer]) is None:
        return None
    if isinstance(held, str):  # tables hold objects as text
        with suppress(ValueError):
            held = json.loads(held)
    if not isinstance(held, Mapping):
        raise KeyError(name)
    return _inside(held, inner)


def needed(data: Mapping[str, Any], place: str, *names: str) -> tuple[Any, ...]:
    """Return the values of columns that a dataset of a known format must have.

    Raises:
        DataError: A column is missing or null.
    """
    if missing := [name for name in names if name not in data]:
        raise DataError(
            f"{place}: no column '{missing[0]}'; the columns are {_names(data)}, needed are {', '.join(names)}. "
            f"If it is called otherwise, write {naming(missing[0])}."
        )
    if null := [name for name in names if data[name] is None]:
        raise DataError(f"{place}: its {null[0]} is null. Write it there, or leave the row out.")
    return tuple(data[name] for name in names)


def make_row(
    row_id: int, data: Mapping[str, Any], place: str, config: FilesConfig, raw: Mapping[str, Any] | None = None
) -> Row:
    """Convert a row of a file to a `Row`.

    Args:
        row_id: Id of the row.
        data: TRL's columns and further ones, under our names.
        place: Place of the row, for messages.
        config: Settings: template, conversation and further columns.
        raw: Further columns that the template may use.

    Raises:
        DataError: The row has no prompt, or columns that do not fit together.
    """
    columns = dict(data)
    if config.prompt_template is not None:
        columns["prompt"] = _filled(config.prompt_template, {**(raw or {}), **columns}, place)
    columns = to_columns(columns, place)
    if config.prompt_template is not None and "prompt" not in columns:
        raise DataError(
            f"{place}: prompt_template changes nothing here: the question is read from the conversations beside "
            "the prompt, which have it too. Set it to null."
        )
    whole = _split_messages(columns, place)
    _extract_prompt(columns, place)
    if "prompt" not in columns:
        raise DataError(
            f"{place}: no prompt. The columns are {_names(data)}; allowed are {ALLOWED}, in a file of its own for "
            f"each split. If one of them is called otherwise, write {naming('prompt')} or the like."
        )
    empty = (
        f"{place}: the prompt is empty. Write a text there, or leave the row out. The columns are {_names(data)}."
    )
    if (given := columns["prompt"]) is None or (isinstance(given, str) and not given.strip()):
        raise DataError(empty)
    texts: dict[str, Text | None] = {"prompt": _text(columns.pop("prompt"), "prompt", place)}
    for name in ANSWERS:
        given = columns.pop(name, None)
        texts[name] = None if given is None else _text(given, name, place)
    if (texts["chosen"] is None) != (texts["rejected"] is None):
        lacks = "chosen" if texts["chosen"] is None else "rejected"
        raise DataError(
            f"{place}: 'chosen' and 'rejected' go together, and {lacks} is null or not there. Write it, or leave "
            f"the row out; the columns are {_names(data)}."
        )
    if config.chat or not isinstance(texts["prompt"], str):
        texts = {
            name: None if text is None else chat.as_turns(text, "user" if name == "prompt" else "assistant")
            for name, text in texts.items()
        }
    _check_one_form(texts, place)
    prompt, pair = texts["prompt"], [texts["chosen"], texts["rejected"]]
    assert prompt is not None
    if not isinstance(prompt, str):
        if not any(turn["content"].strip() or turn.get("tool_calls") for turn in prompt):
            raise DataError(empty)
        if pair[0] is not None and pair[1] is not None:
            texts["chosen"], texts["rejected"] = chat.without_prompt(prompt, pair[0], pair[1])
        if texts["completion"] is not None:
            (texts["completion"],) = chat.without_prompt(prompt, texts["completion"])
        _check_due(prompt, texts, place)
        prompt = with_system(list(prompt), columns)
    if config.system_prompt is not None:
        prompt = _with_system(config.system_prompt, prompt, place)
    return Row(
        row_id,
        prompt,
        {**_further(columns, config.further_columns, place), **_template_columns(columns, prompt, config, place)},
        completion=texts["completion"],
        chosen=texts["chosen"],
        rejected=texts["rejected"],
        whole=whole,
    )


def _split_messages(columns: dict[str, Any], place: str) -> bool:
    """Split a conversation before the assistant's last turn, which becomes the completion.

    Return whether it was split.
    """
    if columns.get("prompt") is not None or columns.get("messages") is None:
        return False
    messages = _text(columns.pop("messages"), "messages", place)
    if isinstance(messages, str):
        raise DataError(f"{place}: 'messages' must be a list of {{role, content}}, found text.")
    turns = list(messages)
    if turns[-1]["role"] == "assistant":
        columns["completion"] = [turns.pop()]
    if not turns:
        raise DataError(f"{place}: 'messages' has nothing before the assistant's turn, so there is no prompt.")
    columns["prompt"] = turns
    return True


def _extract_prompt(columns: dict[str, Any], place: str) -> None:
    """Set a missing prompt to the common beginning of the two answers, up to the end of a turn.

    `trl.extract_prompt` takes the whole common beginning, which may end inside an answer: then two pairs of one
    question have two prompts.
    """
    if columns.get("prompt") is not None or any(columns.get(name) is None for name in ANSWERS[1:]):
        return
    one, other = (_text(columns[name], name, place) for name in ANSWERS[1:])
    if isinstance(one, str) != isinstance(other, str):
        raise DataError(f"{place}: 'chosen' and 'rejected' must both be text or both be conversations.")
    alike = chat.shared(one, other)
    # If one conversation is a prefix of the other, each answer keeps at least one turn.
    alike = _turn_end(one[:alike]) if isinstance(one, str) else min(alike, len(one) - 1, len(other) - 1)
    if not alike:
        raise DataError(
            f"{place}: no prompt: 'chosen' and 'rejected' share no beginning that could be one. If a column has "
            f"it, write {naming('prompt')}."
        )
    columns.update(prompt=one[:alike], chosen=one[alike:], rejected=other[alike:])


def _turn_end(both: str) -> int:
    """Find the end of the prompt in two texts' common beginning: after an answer mark, a line, or a word."""
    marks = list(_ANSWER_MARK.finditer(both))
    if marks:
        return marks[-1].end()
    head = both.rstrip(" ")
    if head != both:  # a space belongs to the word after it
        return len(head)
    line, word = both.rfind("\n") + 1, max(both.rfind(" "), 0)
    return (line if both[:line].strip() else word) or len(both)


def _text(value: object, name: str, place: str) -> Text:
    if isinstance(value, str):
        _check_length(len(value), name, place)
        return value
    if isinstance(value, Mapping):
        value = [value]  # one turn
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        if not value:
            raise DataError(f"{place}: '{name}' is an empty list. Leave the row out.")
        turns = [_message(message, name, place) for message in value]
        _check_length(sum(len(turn["content"]) for turn in turns), name, place)
        return turns
    raise DataError(
        f"{place}: '{name}' must be text or a list of {{role, content}}, found {type(value).__name__}."
    )


def _check_length(length: int, name: str, place: str) -> None:
    if length > LONGEST_TEXT:
        raise DataError(
            f"{place}: '{name}' has {length:,} characters, more than the {LONGEST_TEXT:,} that a text may have. "
            "Shorten it, or leave the row out."
        )


def _message(message: object, name: str, place: str) -> Message:
    if isinstance(message, Mapping) and message.get("content") is None and message.get("tool_calls"):
        message = {**message, "content": ""}
    if isinstance(message, Mapping) and isinstance(parts := message.get("content"), list):
        message = {**message, "content": _joined(parts, name, place)}
    if isinstance(message, Mapping) and all(isinstance(message.get(key), str) for key in ("role", "content")):
        return {str(key): value for key, value in message.items() if value is not None}
    kinds = type(message).__name__
    if isinstance(message, Mapping):
        kinds = ", ".join(f"{key}: {type(value).__name__}" for key, value in message.items())
    raise DataError(
        f"{place}: every message in '{name}' needs 'role' and 'content' as text, found {kinds}. Rows of a form of "
        "their own are read by a class of yours: see docs/datasets.md. A table by columns is written as rows by "
        "pandas' to_json(PATH, orient='records', lines=True)."
    )


def _joined(parts: Sequence[object], name: str, place: str) -> str:
    """Join content that is a list of parts into one text, one line each, as vLLM does for string templates."""
    for part in parts:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise DataError(
                f"{place}: a message in '{name}' has a part of type {kind!r}; only text is read. Leave such parts "
                "or rows out."
            )
    return "\n".join(part["text"] for part in parts if isinstance(part, Mapping))


def _check_one_form(texts: Mapping[str, Text | None], place: str) -> None:
    forms = {name: isinstance(text, str) for name, text in texts.items() if text is not None}
    if len(set(forms.values())) > 1:
        said = ", ".join(f"'{name}' is {'text' if plain else 'a conversation'}" for name, plain in forms.items())
        raise DataError(f"{place}: {said}; a row is all text or all conversation. chat=true makes text one.")


def _check_due(prompt: Sequence[Message], texts: Mapping[str, Text | None], place: str) -> None:
    """Reject answers that begin with a turn of the system or the user: these are whole conversations."""
    for name in ANSWERS:
        answer = texts[name]
        role = answer[0]["role"] if answer and not isinstance(answer, str) else ""
        if role == "system" or role == prompt[-1]["role"] == "user":
            raise DataError(
                f"{place}: '{name}' begins with a turn of the {role}, where one of the assistant is due, and the "
                "prompt is not what it begins with. Leave the prompt out where answers are whole conversations."
            )


def _with_system(system: str, prompt: Text, place: str) -> Text:
    if isinstance(prompt, str):
        raise DataError(f"{place}: system_prompt needs a conversation, but the prompt is text; set chat=true.")
    if prompt[0]["role"] == "system":
        prompt = prompt[1:]
    return [{"role": "system", "content": system}, *prompt]


def _template_columns(columns: Mapping[str, Any], prompt: Text, config: FilesConfig, place: str) -> dict[str, Any]:
    """Return the columns with arguments of a chat template, including those from the settings."""
    set_for_all = {**config.chat_template_kwargs, **({} if config.date is None else {chat.CLOCK: config.date})}
    if isinstance(prompt, str):
        if config.chat_template_kwargs or columns.get(chat.ARGUMENTS):
            whose = chat.ARGUMENTS if config.chat_template_kwargs else f"the column {chat.ARGUMENTS}"
            raise DataError(
                f"{place}: {whose} is for a chat template, and the prompt is text; set chat=true, "
                f"or leave {chat.ARGUMENTS} out."
            )
        return {}
    own = {name: columns[name] for name in ("tools", chat.ARGUMENTS) if columns.get(name)}
    try:
        arguments = chat.template_arguments(own)
    except DataError as error:
        raise DataError(f"{place}: {error}.") from error
    arguments.pop("tools", None)
    found = {"tools": own["tools"]} if "tools" in own else {}
    return found | ({chat.ARGUMENTS: {**set_for_all, **arguments}} if set_for_all or arguments else {})


def _further(columns: Mapping[str, Any], kept: Sequence[str] | None, place: str) -> dict[str, Any]:
    if kept is not None:
        return {name: columns[name] for name in kept if name in columns}
    for name in columns:
        if name in GIVEN:
            raise DataError(
                f"{place}: rewards are given something else as '{name}'. Rename it by 'datasets.NAME.columns="
                f"{{dataset_{name}: {name}}}', or list those to keep in datasets.NAME.further_columns."
            )
    return dict(columns)


def _filled(template: str, columns: Mapping[str, Any], place: str) -> str:
    for name in template_fields(template):
        uses = f"{place}: prompt_template uses '{{{name}}}'"
        if name not in columns:
            raise DataError(f"{uses}: {unknown_name('column', name, map(str, columns))}")
        if not isinstance(columns[name], (str, int, float)):
            raise DataError(
                f"{uses}, which is no text here; the columns are {_names(columns)}. Text is made of it by a class "
                "of yours: see docs/datasets.md."
            )
    return template.format_map(columns)


def template_fields(template: str) -> list[str]:
    """Return the names of the columns that a prompt template uses.

    Raises:
        ConfigError: The template is no valid format string, or has more than plain names in braces.
    """
    try:
        parts = [(name, rest or turn) for _, name, rest, turn in string.Formatter().parse(template)]
    except ValueError as error:
        raise ConfigError(f"prompt_template={template!r}: {error}; write {{{{ and }}}} for braces") from error
    for name, rest in parts:
        # Anything else in braces, such as {a.b}, would access attributes of objects.
        if name is not None and (rest or not name.isidentifier()):
            raise ConfigError(f"prompt_template={template!r}: '{{{name}}}' must be the plain name of a column")
    return [name for name, _ in parts if name is not None]


def _names(data: Mapping[str, Any]) -> str:
    return ", ".join(map(str, data)) or "none"


@dataclass(kw_only=True)
class FilesConfig(DatasetConfig):
    """Rows read from files or from the Hugging Face hub, in TRL's columns; docs/datasets.md has examples."""

    test_size: int = number(500, at_least=1, at_most=1_000_000_000)
    """Test prompts at most. Taken from the test split where the source has one, else cut from train."""
    validation_size: int = number(500, at_least=1, at_most=1_000_000_000)
    """Validation prompts at most, likewise."""
    path: str | None = file_or_folder(None, affects_result=False, keyed=BY_CONTENT)
    """File, folder or hub id. Results depend on the content, not on where it is."""
    validation_path: str | None = file_or_folder(None, affects_result=False, keyed=BY_CONTENT)
    """A source of its own for validation; null looks in `path`."""
    test_path: str | None = file_or_folder(None, affects_result=False, keyed=BY_CONTENT)
    """A source of its own for the test split; null looks in `path`."""
    subset: str | None = None
    """Configuration of the hub's dataset, or the folder of that name inside a local one."""
    revision: str | None = hint(None, keyed=BY_CONTENT)
    """Commit, tag or branch of `path` on the hub; null takes the newest."""
    train_split: str | None = None
    """Name of the split to train on; null takes `train`, or the only one there is."""
    validation_split: str | None = None
    """Null takes `validation` where there is one, else cuts it from train."""
    test_split: str | None = None
    """Null takes `test` where there is one, else cuts it from train."""
    columns: dict[str, str] = field(default_factory=dict)
    """Our name -> the file's name, for columns that are called otherwise: {prompt: question}."""
    further_columns: list[str] | None = None
    """Columns kept for rewards besides TRL's own; null keeps all."""
    prompt_template: str | None = model_text(None)
    """Text of the prompt with columns in braces, such as 'Q: {prompt} A:'; null takes the prompt as it is. Typed
    on the command line, a backslash and an n are a line break."""
    chat: bool = False
    """Make a prompt of text the user's turn of a conversation, so that the model's chat template is applied."""
    system_prompt: str | None = model_text(None)
    """First message of every conversation, in the place of its own; null leaves that. Line breaks as in
    `prompt_template`."""
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the model's chat template, as {enable_thinking: false}; a column of that name goes before."""
    date: str | None = None
    """Today's date, as 2026-11-27, for chat templates that ask for it; null tells them 2024-07-26 on any day."""
    limit: int | None = number(None, at_least=1, at_most=1_000_000_000, hint=", or null to read all")
    """Rows read of each split at most; null reads all."""
    evaluation_only: bool = option(False)
    """Whether nothing is trained on. Test is then `test_split`, or the only split of the source, whatever it is
    called; validation is read where the source has it. True by default for one file with `trained_on=false`."""

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Report training on a dataset that is only evaluated on."""
        trains = self.trained_on and any(algo.enabled and algo.trains for algo in config.algos.values())
        if self.evaluation_only and trains and config.stage is not StageChoice.prepare:
            name = key.removeprefix("datasets.")
            other = f"on another one, as dataset=math 'evaluation.on=[{name}]'"
            yield (
                f"{key} is for evaluation alone ({key}.evaluation_only=true): it has no rows to train on. "
                + (f"Set {key}.trained_on=false" if name in config.evaluation.on else f"Train {other}")
            )


STEP_BY_STEP = "{prompt}\nPlease reason step by step, and put your final answer within \\boxed{{}}."


PATHS = ("path", "validation_path", "test_path")


_PARTS = ("subset", "train_split", "validation_split", "test_split")
"""Settings that choose parts of a source."""


class FilesDataset(Dataset):
    """Base of datasets that are read. A subclass defines in `adapt` what its columns mean.

    Attributes:
        formats: Suffixes of files that can be read.
        hub: Whether `path` may be an id of the Hugging Face hub.
    """

    prepared = True
    version = 4
    config_class: ClassVar[type[DatasetConfig]] = FilesConfig
    formats: ClassVar[tuple[str, ...]] = files.TABLES
    hub: ClassVar[bool] = True

    def __init__(self, config: FilesConfig) -> None:
        super().__init__(config)
        self.source = config
        self.unread: Sequence[str] = ()
        """Splits of the source with names like ours that `rows_of` leaves out."""
        if not config.path:
            what = "a file, folder or hub id" if self.hub else "a file or folder"
            raise ConfigError(f"dataset '{config.kind}': path is missing; give {what}")
        template_fields(config.prompt_template or "")
        try:
            chat.template_arguments({chat.ARGUMENTS: config.chat_template_kwargs})
            date.fromisoformat(config.date or "2026-11-27")
        except DataError as error:
            raise ConfigError(str(error)) from error
        except ValueError as error:
            raise ConfigError(f"date={config.date!r}: must be a day as 2026-11-27, or null") from error

    def note_of(self, split: str) -> str:
        """Return the note, which is about the test split of the source that ships; "" for all others."""
        usual = {each.name: each.default for each in fields(self.source)}
        ships = all(getattr(self.source, name) == usual[name] for name in (*PATHS, *_PARTS))
        return self.note if ships and split == "test" else ""

    def locations(self) -> dict[str, files.Location]:
        """Return the location of the rows by setting: ``path``, and the other paths that are set.

        Raises:
            DataError: A local file does not exist, or holds no readable rows.
        """
        given = {name: getattr(self.source, name) for name in PATHS}
        found: dict[str, files.Location] = {}
        usual = next(each.default for each in fields(self.source) if each.name == "subset")
        for name, path in given.items():
            if path:
                # Subset and revision belong to the main source.
                subset, revision = (self.source.subset, self.source.revision) if name == "path" else (None, None)
                found[name] = files.locate(
                    path, self.formats, hub=self.hub, subset=subset, revision=revision, is_usual=subset == usual
                )
        return found

    def rows_of(self) -> dict[str, files.Rows]:
        """Return the rows of ``train``, and of ``validation`` and ``test`` if the source has such splits.

        For a dataset that is only evaluated on: the rows of ``test``, and of ``validation`` if the source has it.

        Raises:
            DataError: A source does not exist, cannot be reached, or lacks a requested split.
        """
        config = self.source
        sources = {name: files.open_source(location) for name, location in self.locations().items()}
        found: dict[str, files.Rows] = {}
        main = "test" if config.evaluation_only else "train"
        for split in ("validation", "test") if config.evaluation_only else ("train", "validation", "test"):
            asked: str | None = getattr(config, f"{split}_split")
            name, splits = sources.get(f"{split}_path", sources["path"])
            further = split != main and f"{split}_path" not in sources and asked is None
            if further and (split not in splits or config.train_split == split):
                continue  # the split is cut from train
            if further and config.evaluation_only and len(splits) == 1:
                continue  # the only split is test, whatever its name
            chosen = asked or (split if split in splits or len(splits) != 1 else next(iter(splits)))
            if chosen not in splits:
                chosen = files.SPLIT_WORDS.get(chosen, chosen)
            if split == "train" and asked is None and chosen in ("validation", "test"):
                raise DataError(
                    f"{name}: its only split is '{chosen}', which is for evaluation. evaluation_only=true keeps "
                    f"it for that; train_split={chosen} trains on what is not cut from it."
                )
            if chosen not in splits:
                raise DataError(f"{name}: {unknown_name('split', chosen, splits)} Set {split}_split to choose.")
            found[split] = splits[chosen]
        read = {id(rows) for rows in found.values()}
        words = {word: split for word, split in files.SPLIT_WORDS.items() if f"{split}_path" not in sources}
        left = [name for name, rows in sources["path"][1].items() if id(rows) not in read]
        named = [name for name in left if not words.keys().isdisjoint(files.words_of(name))]
        self.unread = [] if config.evaluation_only else named
        return found

    def adapt(self, data: Mapping[str, Any], place: str) -> Mapping[str, Any] | None:
        """Convert the columns of a row to TRL's columns and further ones for rewards.

        Return None to leave the row out.

        Args:
            data: The file's columns, renamed by the configuration.
            place: Place of the row, for messages.
        """
        return data

    def make_row(self, row_id: int, record: files.Record) -> Row | None:
        """Convert a record to a `Row`, or None if the dataset leaves it out.

        Raises:
            DataError: The row lacks a required column or value.
        """
        data = renamed(record.data, self.source.columns, record.place)
        adapted = self.adapt(data, record.place)
        return None if adapted is None else make_row(row_id, adapted, record.place, self.source, data)

    def row(self, row_id: int) -> Row:
        """Raise `DataError`: rows come from `PreparedDataset`."""
        raise DataError(f"dataset '{self.config.kind}' is read once by `prepare`, then by PreparedDataset")


# -- fingerprint -------------------------------------------------------------------------------------------------
# Identifies the source of a dataset in a plan: the content of local files, or the id on the hub. Used during
# planning, so it imports neither `datasets` nor pyarrow.


_FOLLOWED = partial(file_sha256, follow=True)  # the hub's cache holds links


def source_fingerprint(dataset: Dataset, file_hash: Callable[[Path], str] = _FOLLOWED) -> dict[str, Any]:
    """Identify the source of a dataset's rows, independent of where local files are.

    Args:
        dataset: The dataset.
        file_hash: Function that hashes a file's content; a caller that caches hashes passes its own.

    Returns:
        Plain data; empty for datasets that are made rather than read.

    Raises:
        DataError: A local file does not exist or may not be read, or a folder has no readable file.
    """
    if not isinstance(dataset, FilesDataset):
        return {}
    try:
        return {name: _identity(location, file_hash) for name, location in dataset.locations().items()}
    except OSError as error:
        raise DataError(
            f"dataset '{dataset.config.kind}': cannot read {error.filename or dataset.source.path} "
            f"({error.strerror}). See that you may read it, and enter the folders that it is in."
        ) from error


def _identity(location: files.Location, file_hash: Callable[[Path], str]) -> dict[str, Any]:
    if isinstance(location, files.HubDataset):
        return {"hub": location.repo, "subset": location.subset, "revision": location.revision}
    return _content(location, file_hash)


def _content(there: files.LocalFiles, file_hash: Callable[[Path], str]) -> dict[str, Any]:
    whole = hashlib.sha256()
    count = size = 0
    for split, paths in sorted(there.splits.items()):
        for path in paths:
            length = path.stat().st_size
            # The folder of a text file may be its label.
            form = (
                f"{files.format_of(path)}/{path.parent.name}"
                if files.format_of(path) in files.TEXT
                else files.format_of(path)
            )
            whole.update(f"{split} {form} {length} {file_hash(path)}\n".encode())
            count, size = count + 1, size + length
    return {"files": count, "bytes": size, "sha256": whole.hexdigest()}
