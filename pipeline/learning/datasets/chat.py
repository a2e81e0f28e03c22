"""Conversations as the text that a model reads: its chat template, with what a row gives it besides turns.

A template may ask for today's date. It is told one date, so that equal runs have equal prompts on every day.
"""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from pipeline.errors import DataError
from pipeline.foreign import read_model_json
from pipeline.learning.datasets.base import Message, Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    Templated: TypeAlias = "PreTrainedTokenizerBase | TemplateOfFolder"

_OF_TURNS = ("role", "content", "tool_calls", "tool_call_id", "name", "id")
"""What turns have that is read, or changes nothing for a reader."""
DATE = "2024-07-26"
"""Of templates that ask the clock where none is set: what those of Llama 3.1 write where there is no clock."""
CLOCK = "strftime_now"
"""What templates call to ask the clock; as an argument of a template, the date that it is told."""
ARGUMENTS = "chat_template_kwargs"
MARK = "\ue000\ue001"
"""Takes the place of what a turn says, to see where that is in the text: no text that people write has it."""
_DATED = (f"{{%- macro {CLOCK}(format) -%}}", "{%- endmacro %}{{ '' }}")
"""What `dated` begins a template with, up to the date and behind it."""
_CODES = "aAbBcdHIjmMpSUwWxXyYZ"
"""Of strftime, that templates use."""
FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, TimeoutError)
"""Of templates, besides those of Jinja."""
_LONGEST_S = 5
"""Seconds of the processor for one conversation; loops in loops would take for ever."""
_OURS = {"tokenize", "add_generation_prompt", "continue_final_message", "return_dict", "return_tensors", "padding"}
_OURS |= {"truncation", "max_length", "conversation", "tools", "return_assistant_tokens_mask", "tokenizer_kwargs"}


def template_arguments(columns: Mapping[str, Any]) -> dict[str, Any]:
    """What a row gives its chat template besides turns: TRL's columns ``tools`` and ``chat_template_kwargs``.

    Columns of Parquet have null in each place that only other rows fill; these are left out, as TRL does.

    Raises:
        DataError: They are not a list of tools and a table of arguments.
    """
    tools, further = (filled(_read(columns.get(name), name)) for name in ("tools", ARGUMENTS))
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise DataError(f"`tools` must be a list of JSON schemas, found {str(tools)[:80]!r}")
    if further is not None and not isinstance(further, dict):
        raise DataError(f"`{ARGUMENTS}` must be a table such as {{enable_thinking: false}}, found {further!r}")
    if ours := sorted(_OURS & set(further or {})):
        raise DataError(f"`{ARGUMENTS}` has {ours[0]}, which is not an argument of templates; leave it out")
    return {**({"tools": tools} if tools else {}), **(further or {})}


def rendered(
    tokenizer: Templated,
    turns: Sequence[Message],
    arguments: Mapping[str, Any] | None = None,
    *,
    due: bool = False,
    goes_on: bool = False,
) -> str:
    """The text of a conversation by the model's chat template. All that renders one does it here.

    Args:
        tokenizer: Has the template.
        turns: The conversation.
        arguments: Of `template_arguments`, and under `CLOCK` the date that it is told.
        due: Write also what an answer of the assistant begins with.
        goes_on: Leave the last turn open, so that the model goes on with it.

    Raises:
        TemplateError: The template refuses these turns.
        TimeoutError: It takes too long for them.
    """
    given = dict(arguments or {})
    date = str(given.pop(CLOCK, DATE))
    if asks_clock(tokenizer):
        given["chat_template"] = dated(tokenizer.get_chat_template(tools=given.get("tools")) or "", date)
    with _bounded():
        return str(
            tokenizer.apply_chat_template(
                [dict(turn) for turn in turns],
                tokenize=False,
                add_generation_prompt=due,
                continue_final_message=goes_on,
                **given,
            )
        )


@contextmanager
def _bounded() -> Iterator[None]:
    """Raise `TimeoutError` in what takes too long; in another thread than the main one there is no bound."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> NoReturn:
        raise TimeoutError(f"it is not done after {_LONGEST_S} s; does it loop?")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, _LONGEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def prompt_text(tokenizer: Templated, turns: Sequence[Message], arguments: Mapping[str, Any] | None = None) -> str:
    """The text of a prompt: up to where an answer is due, or on from what the assistant has begun.

    Raises:
        DataError: The template refuses these turns.
    """
    begun = turns[-1]["role"] == "assistant"
    return written(tokenizer, turns, arguments, due=not begun, goes_on=begun)


def written(
    tokenizer: Templated, turns: Sequence[Message], arguments: Mapping[str, Any] | None = None, **how: bool
) -> str:
    """As `rendered`, with a message for whoever has the rows.

    Raises:
        DataError: The template refuses these turns, or leaves out what they call of tools.
    """
    from jinja2 import TemplateError  # planning has no use for it

    try:
        text = rendered(tokenizer, turns, arguments, **how)
        for place, turn in enumerate(turns):
            if not turn.get("tool_calls"):
                continue
            other = {**turn, "tool_calls": _marked_calls(turn["tool_calls"])}
            if text == rendered(tokenizer, [*turns[:place], other, *turns[place + 1 :]], arguments, **how):
                raise DataError(
                    f"the chat template of {tokenizer.name_or_path or 'the model'} does not write the "
                    "`tool_calls` of a turn, so an answer would be learnt without them. Choose a model whose "
                    "template does, or write the calls in the content"
                )
    except (TemplateError, *FAULTS) as error:
        raise DataError(refused(tokenizer, turns, error)) from error
    return text


def marked(turn: Message) -> Message:
    """A turn that says something else: what of a conversation's text differs then is what this turn says."""
    if not turn.get("tool_calls"):
        return {**turn, "content": MARK}
    return {**turn, "content": MARK if turn["content"] else "", "tool_calls": _marked_calls(turn["tool_calls"])}


def refused(tokenizer: Templated, turns: Sequence[Message], error: Exception) -> str:
    """What to say where a template cannot write a conversation, and what to do about it."""
    roles = [str(turn.get("role")) for turn in turns]
    advice = "Write the turns as that template takes them, or choose another model"
    if "system" in roles:
        advice = (
            "Its template may take no system turn: put its text at the begin of the first user turn, or leave it "
            "out; one that a setting adds goes by datasets.NAME.system_prompt=null"
        )
    elif any(one == other for one, other in pairwise(roles)):
        advice = "Turns that follow each other with the same role must be merged into one"
    said = " ".join(str(error).split())[:300] or type(error).__name__
    whose = tokenizer.name_or_path or "the model"
    return f"the chat template of {whose} refuses a conversation of {', '.join(roles[:8])}: {said}. {advice}"


def asks_clock(tokenizer: Templated) -> bool:
    """Whether a tokenizer's template asks for today's date."""
    return CLOCK in str(tokenizer.chat_template or "")


class TemplateOfFolder:
    """The chat template of a model's folder by itself: it needs no torch, and no time to read a vocabulary.

    Attributes:
        name_or_path: The folder.
        chat_template: Its text; None where it has none that is written there.
    """

    def __init__(self, folder: Path) -> None:
        """Read it; raises `ForeignDataError` or `OSError` where that cannot be."""
        settings = read_model_json(folder / "tokenizer_config.json", dict[str, Any])
        beside, inside = folder / "chat_template.jinja", settings.get("chat_template")
        self.name_or_path = str(folder)
        found = beside.read_text() if beside.is_file() else inside
        several = (
            {one["name"]: one["template"] for one in found} if isinstance(found, list) else {"default": found}
        )
        self._templates = {name: text for name, text in several.items() if isinstance(text, str)}
        self.chat_template = self._templates.get("default")
        named = {name: value for name, value in settings.items() if name.endswith("_token")}
        each = {name: value.get("content") if isinstance(value, dict) else value for name, value in named.items()}
        self._tokens = {name: value for name, value in each.items() if isinstance(value, str)}

    def get_chat_template(self, tools: object = None) -> str | None:
        """As that of a tokenizer: one for tools where there is one and they are given."""
        return (self._templates.get("tool_use") if tools else None) or self.chat_template

    def apply_chat_template(self, turns: list[dict[str, Any]], **options: Any) -> str:
        """As that of a tokenizer, which calls the same with what it has read."""
        from transformers.utils.chat_template_utils import render_jinja_template

        given = {name: value for name, value in options.items() if name != "tokenize"}
        given.setdefault("chat_template", self.get_chat_template(given.get("tools")))
        made: Any = render_jinja_template(conversations=[turns], **{**self._tokens, **given})
        return str(made[0][0])


def refusal_of(template: TemplateOfFolder, row: Row) -> str:
    """Why a template cannot write a row's prompt, or that with one of its answers; "" where it can."""
    assert not isinstance(row.prompt, str)
    try:
        arguments = template_arguments(row.columns)
        prompt_text(template, row.prompt, arguments)
        for answer in (row.completion, row.chosen, row.rejected):
            if answer is not None and not isinstance(answer, str):
                written(template, [*row.prompt, *answer], arguments)
    except DataError as error:
        return str(error)
    return ""


def unread(template: TemplateOfFolder, row: Row) -> list[str]:
    """Which arguments of a row, and what of its turns, its template does not read, so that they change nothing."""
    arguments = template_arguments(row.columns)
    text = template.get_chat_template(tools=arguments.get("tools")) or ""
    turns = [
        turn
        for said in (row.prompt, row.completion, row.chosen, row.rejected)
        if said and not isinstance(said, str)
        for turn in said
    ]
    names = dict.fromkeys([*arguments, *(key for turn in turns for key in turn if key not in _OF_TURNS)])
    return [name for name in names if name != CLOCK and not re.search(rf"\b{re.escape(name)}\b", text)]


def _marked_calls(calls: Any) -> Any:
    """Calls of tools with other arguments. Their names may be in the text of other turns: of those that answer."""
    if isinstance(calls, list | tuple):
        return [_marked_calls(call) for call in calls]
    if not isinstance(calls, Mapping):
        return calls
    if isinstance(inner := calls.get("function"), Mapping):
        return {**calls, "function": _marked_calls(inner)}
    given = calls.get("arguments")
    other = dict.fromkeys(given or [MARK], MARK) if isinstance(given, Mapping) else MARK
    return {**calls, **({"name": MARK} if given is None else {"arguments": other})}


def dated(template: str, date: str) -> str:
    """A template that takes midnight of a day for the time at which it is used, of whatever day it did before.

    transformers passes no function on to a template, so what it calls is written before it, as a macro that knows
    what each code of strftime stands for.
    """
    day = datetime.fromisoformat(date)
    names = {code: day.strftime(f"%{code}") for code in _CODES}
    names |= {f"-{code}": names[code].lstrip("0") or "0" for code in "dHIjmMS"}
    filters = "".join(f"|replace({json.dumps('%' + code)}, {json.dumps(name)})" for code, name in names.items())
    # What is printed at the end keeps a line break that the template begins with.
    own = template.partition(_DATED[1])[2] if template.startswith(_DATED[0]) else template
    return f"{_DATED[0]}{{{{ format{filters} }}}}{_DATED[1]}{own}"


def _read(given: Any, name: str) -> Any:
    try:
        return json.loads(given) if isinstance(given, str) and given.strip() else given or None
    except ValueError as error:
        raise DataError(f"`{name}` is text and no JSON: {given[:80]!r}") from error


def filled(given: Any) -> Any:
    """Plain data without nulls in its tables."""
    if isinstance(given, Mapping):
        return {name: filled(value) for name, value in given.items() if value is not None}
    return [filled(value) for value in given] if isinstance(given, list | tuple) else given
