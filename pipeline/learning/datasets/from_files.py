"""Datasets whose rows are in files or on the hub: their settings, and from a row of a file to one of ours.

Columns are TRL's. A row that cannot be used is refused with its place.

`prepare` reads such a dataset once; chains open what it wrote.
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
# Rows of other programs in TRL's columns: ShareGPT's conversations and Alpaca's instructions. A conversation
# of ShareGPT is a list of turns with ``from`` and ``value``, under ``conversations``; TRL renames all three
# likewise (`trl.maybe_convert_to_chatml`), and axolotl and LLaMA-Factory say which role each speaker is. The
# prompt of Alpaca is the instruction, with the input on the next line if there is one, as LLaMA-Factory joins
# them. Tables hold turns as text.


_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "ai", "chatgpt", "model", "bot", "bard", "bing"), "assistant"),
    **dict.fromkeys(("tool", "observation"), "tool"),
    "system": "system",
}
_TEXTS = ("prompt", "messages", "chosen", "rejected")
"""Columns of TRL's that say what a row is."""
_CONVERSATIONS = (*_TEXTS, "completion", "conversations")
_LABELS = {"true": True, "1": True, "false": False, "0": False}
"""What tables say of whether a completion is wanted, as text."""
_WRITTEN = re.compile(r"\s*\[\s*\{\s*([\"'])(?:role|content|from|value)\1\s*:")
"""How a list of turns begins that was written as text."""


def to_columns(columns: Mapping[str, Any], place: str) -> dict[str, Any]:
    """A row in TRL's columns, of one that may be in another program's.

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
        del found["prompt"]  # it is in both; as `trl.maybe_extract_prompt` has it
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
    """Whether an answer is a conversation, with what was asked in it."""
    first = answer[0] if isinstance(answer, list) and answer else None
    return isinstance(first, Mapping) and first.get("role") != "assistant"


def _is_first_question(columns: Mapping[str, Any]) -> bool:
    """Whether the prompt is the first question of a conversation beside it that is answered, as in UltraChat."""
    asked, turns = columns.get("prompt"), columns.get("messages")
    if not isinstance(asked, str) or not isinstance(turns, list) or not _is_whole(turns):
        return False
    said = [(turn.get("role"), turn.get("content")) for turn in turns if isinstance(turn, Mapping)]
    return said[-1][0] == "assistant" and asked == next((text for role, text in said if role == "user"), None)


def _from_instruction(columns: dict[str, Any]) -> None:
    """Make a prompt and a completion of a row of Alpaca; a conversation where it has a system prompt."""
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
    """A conversation with the system prompt that stands in a column beside it."""
    system = columns.get("system")
    if not isinstance(system, str) or not turns or not isinstance(turns[0], Mapping):
        return turns
    own = str(turns[0].get("content") or "").strip() if turns[0].get("role") == "system" else None
    if own and system.strip() not in ("", own):
        return turns  # what stays in its column is told
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
"""How texts say that an answer follows, as those of HH-RLHF, Alpaca and TL;DR do, and chat templates."""
LONGEST_TEXT = 1 << 21
"""Characters of a prompt or an answer. No model reads so many tokens, and a tokenizer takes 400 bytes for each."""


def naming(column: str) -> str:
    """The setting that names a column of the file, as it is typed in a shell."""
    return f"'datasets.NAME.columns={{{column}: COLUMN}}'"


def of_dataset(said: object, name: str) -> str:
    """What is said of some dataset, with its name in the settings that are to be typed."""
    return str(said).replace("datasets.NAME", f"datasets.{name}")


def renamed(data: Mapping[str, Any], columns: Mapping[str, str], place: str) -> dict[str, Any]:
    """Columns under our names.

    Args:
        data: The file's columns.
        columns: Our name -> the file's name, or names by points for what is inside of a column. Of a conversation
            `completion` is the text of the last turn.
        place: For messages.

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
    """What the assistant says last in a row that is a conversation; None where it is none, or ends otherwise."""
    columns = to_columns(data, place)
    if not _split_messages(columns, place) or "completion" not in columns:
        return None
    text: str = columns["completion"][-1]["content"]
    return text


def _inside(data: Mapping[str, Any], name: str) -> Any:
    """A column, or what is inside of one by names with points between them; KeyError where there is neither."""
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
    """The values of columns that a dataset of a known form must have.

    Raises:
        DataError: One is not there, or null.
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
    """A row of ours.

    Args:
        row_id: Its id.
        data: TRL's columns and further ones, under our names.
        place: Of the row, for messages.
        config: Its template, conversation and further columns.
        raw: More columns that the template may use.

    Raises:
        DataError: The row has no prompt, or columns that do not go together.
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
    """Cut a whole conversation before the assistant's last turn, the completion; say whether there is one."""
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
    """Take what two answers begin with as their prompt, where none is given; up to the end of a turn.

    `trl.extract_prompt` takes all that they share, which may end inside of an answer: then two pairs of one
    question have two prompts.
    """
    if columns.get("prompt") is not None or any(columns.get(name) is None for name in ANSWERS[1:]):
        return
    one, other = (_text(columns[name], name, place) for name in ANSWERS[1:])
    if isinstance(one, str) != isinstance(other, str):
        raise DataError(f"{place}: 'chosen' and 'rejected' must both be text or both be conversations.")
    alike = chat.shared(one, other)
    # Something is left of conversations of which one begins, or is, the other.
    alike = _turn_end(one[:alike]) if isinstance(one, str) else min(alike, len(one) - 1, len(other) - 1)
    if not alike:
        raise DataError(
            f"{place}: no prompt: 'chosen' and 'rejected' share no beginning that could be one. If a column has "
            f"it, write {naming('prompt')}."
        )
    columns.update(prompt=one[:alike], chosen=one[alike:], rejected=other[alike:])


def _turn_end(both: str) -> int:
    """Where a prompt ends in what two texts share: after the mark of an answer, else with a line, else a word."""
    marks = list(_ANSWER_MARK.finditer(both))
    if marks:
        return marks[-1].end()
    head = both.rstrip(" ")
    if head != both:  # a space belongs to the word that follows it
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
    """Content that is a list of parts as one text: a line each, as vLLM has it for templates that take text."""
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
    """Refuse answers that begin with who has asked: whole conversations, which the prompt would precede."""
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
    """The columns that give a chat template its arguments, those of the settings among them."""
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
    """Names of the columns that a template of prompts uses.

    Raises:
        ConfigError: It could not be filled.
    """
    try:
        parts = [(name, rest or turn) for _, name, rest, turn in string.Formatter().parse(template)]
    except ValueError as error:
        raise ConfigError(f"prompt_template={template!r}: {error}; write {{{{ and }}}} for braces") from error
    for name, rest in parts:
        # Anything else in braces, such as {a.b}, would reach into objects.
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
    called; validation is read where the source has it."""

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """What cannot be trained on."""
        trains = self.trained_on and any(algo.enabled and algo.trains for algo in config.algos.values())
        if self.evaluation_only and trains and config.stage is not StageChoice.prepare:
            yield (
                f"{key} is for evaluation alone ({key}.evaluation_only=true): it has no rows to train on. Train "
                f"on another one, as dataset=math 'evaluation.on=[{key.removeprefix('datasets.')}]'"
            )


STEP_BY_STEP = "{prompt}\nPlease reason step by step, and put your final answer within \\boxed{{}}."


PATHS = ("path", "validation_path", "test_path")


class FilesDataset(Dataset):
    """A subclass says in `adapt` what its columns mean.

    Attributes:
        formats: Suffixes of files that it reads.
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
        """Splits of the source that are called as ours are and that `rows_of` leaves out."""
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

    def locations(self) -> dict[str, files.Location]:
        """Where the rows are, by the name of the setting: ``path``, and the others where they are set.

        Raises:
            DataError: A local file is not there, or holds nothing that can be read.
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
        """The rows of ``train``, and of ``validation`` and ``test`` where the source has such splits.

        Of a dataset for evaluation alone those of ``test``, and of ``validation`` where it has them.

        Raises:
            DataError: A source is not there, cannot be reached, or lacks a split that was asked for.
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
                continue  # it is cut from train
            if further and config.evaluation_only and len(splits) == 1:
                continue  # it is test, whatever its name
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
        """Turn a row's columns into TRL's and further ones for rewards; None leaves the row out.

        Args:
            data: The file's columns, renamed as the configuration says.
            place: Of the row, for messages.
        """
        return data

    def make_row(self, row_id: int, record: files.Record) -> Row | None:
        """A row of ours of one that was read, or None where it is left out.

        Raises:
            DataError: The row lacks what it needs.
        """
        data = renamed(record.data, self.source.columns, record.place)
        adapted = self.adapt(data, record.place)
        return None if adapted is None else make_row(row_id, adapted, record.place, self.source, data)

    def row(self, row_id: int) -> Row:
        """Refused: see `PreparedDataset`."""
        raise DataError(f"dataset '{self.config.kind}' is read once by `prepare`, then by PreparedDataset")


# -- fingerprint -------------------------------------------------------------------------------------------------
# What identifies the source of a dataset in a plan: the content of local files, or the id on the hub. Used
# while planning, so it imports neither `datasets` nor pyarrow.


_FOLLOWED = partial(file_sha256, follow=True)  # caches of a hub hold links


def source_fingerprint(dataset: Dataset, file_hash: Callable[[Path], str] = _FOLLOWED) -> dict[str, Any]:
    """What the rows of a dataset follow from, besides its configuration; the same wherever files are kept.

    Args:
        dataset: It.
        file_hash: Hash of a file's content; a caller that remembers hashes gives one of its own.

    Returns:
        Plain data; empty for datasets that are made rather than read.

    Raises:
        DataError: A local file is not there or may not be read, or there is nothing to read in a folder.
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
