"""Conversations as the text that a model reads: its chat template, with what a row gives it besides turns.

A template may ask for today's date. It is told one date, so that equal runs have equal prompts on every day.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pipeline.errors import DataError
from pipeline.foreign import read_model_json
from pipeline.learning.datasets.base import Message, Row, Text

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
FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Of templates, besides those of Jinja."""
_OURS = {"tokenize", "add_generation_prompt", "continue_final_message", "return_dict", "return_tensors", "padding"}
_OURS |= {"truncation", "max_length", "conversation", "tools", "return_assistant_tokens_mask", "tokenizer_kwargs"}


def template_arguments(columns: Mapping[str, Any]) -> dict[str, Any]:
    """What a row gives its chat template besides turns: TRL's columns ``tools`` and ``chat_template_kwargs``.

    An argument that is null, as Parquet has it where only other rows give one, is none.

    Raises:
        DataError: They are not a list of tools and a table of arguments.
    """
    tools, further = (_read(columns.get(name), name) for name in ("tools", ARGUMENTS))
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise DataError(f"`tools` must be a list of JSON schemas, found {str(tools)[:80]!r}")
    if further is not None and not isinstance(further, dict):
        raise DataError(f"`{ARGUMENTS}` must be a table such as {{enable_thinking: false}}, found {further!r}")
    if ours := sorted(_OURS & set(further or {})):
        raise DataError(f"`{ARGUMENTS}` has {ours[0]}, which is not an argument of templates; leave it out")
    given = {name: value for name, value in (further or {}).items() if value is not None}
    return {**({"tools": tools} if tools else {}), **given}


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
    """
    given = dict(arguments or {})
    date = str(given.pop(CLOCK, DATE))
    if asks_clock(tokenizer):
        given["chat_template"] = dated(tokenizer.get_chat_template(tools=given.get("tools")) or "", date)
    told = [dict(turn) for turn in turns]
    if _reads_parts_alone(
        given.get("chat_template") or tokenizer.get_chat_template(tools=given.get("tools")) or ""
    ):
        told = [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in told]
    return str(
        tokenizer.apply_chat_template(
            told, tokenize=False, add_generation_prompt=due, continue_final_message=goes_on, **given
        )
    )


@cache
def _reads_parts_alone(template: str) -> bool:
    """Whether a template writes what is said in parts and passes over a text, as those of some models that see."""
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    def writes(content: object) -> bool | None:
        turns = [{"role": "user", "content": content}]
        with suppress(TemplateError, *FAULTS):
            return MARK in render_jinja_template(conversations=[turns], chat_template=template)[0][0]
        return None

    return writes(MARK) is False and writes([{"type": "text", "text": MARK}]) is True


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


def marked(turn: Message) -> list[Message]:
    """A turn that says something else: what of a conversation's text differs then is what this turn says.

    Its words and its calls by themselves: a template may write what a tool has answered between them.
    """
    calls = turn.get("tool_calls")
    words = [{**turn, "content": MARK}] if turn["content"] or not calls else []
    return [*words, *([{**turn, "tool_calls": _marked_calls(calls)}] if calls else [])]


def refused(tokenizer: Templated, turns: Sequence[Message], error: Exception) -> str:
    """What to say where a template cannot write a conversation, and what to do about it."""
    roles = [str(turn.get("role")) for turn in turns]
    advice = "Write the turns as that template takes them, or choose another model"
    if "system" in roles:
        advice += "; it may take no system turn: one that a setting adds goes by datasets.NAME.system_prompt=null"
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


# -- answers -----------------------------------------------------------------------------------------------------
# Answers that a dataset has, as token ids with their prompts: what a template and a tokenizer make of the
# whole. The ids are those of TRL's `DPOTrainer`: of prompt and answer together, since tokens may merge where
# the two meet, and since a template may write a prompt otherwise where an answer follows. What is behind the
# end of the answer is left out, and of its turns those of the assistant alone are supervised. Shapes: T
# tokens of prompt and answer.


_CLOSED = re.compile(r"</[^<>]+>\s*$")
"""Ends in a closing tag."""


@dataclass(frozen=True)
class Answered:
    """A prompt with an answer.

    Attributes:
        ids: Up to the end of the answer, shape [T].
        supervised: Which of them the model is to learn to write, shape [T].
        whole: Whether they begin with all that a model reads where the answer is due. Else tokens merge there, or
            the template writes it otherwise before an answer.
        ended: Whether the last of them ends a completion.
    """

    ids: list[int]
    supervised: list[bool]
    whole: bool
    ended: bool


def template_ends(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The token that a chat template writes behind an answer; none where it or the template is missing.

    None either where that is the tokenizer's own end, be there tokens between the answer and it, as in Command A.
    """
    last, earlier = (_behind(tokenizer, after) for after in ("", "?"))
    if tokenizer.eos_token_id in last[: shared(last, earlier)]:
        return ()
    return _added(tokenizer, last)


def _behind(tokenizer: PreTrainedTokenizerBase, after: str) -> list[int]:
    """The tokens that a chat template writes behind an answer, after which a user says something or nothing."""
    if tokenizer.chat_template is None:
        return []
    said = zip(("user", "assistant", "user"), ("?", MARK, after), strict=True)
    turns = [{"role": role, "content": content} for role, content in said if content]
    try:
        text = written(tokenizer, turns)
    except DataError:
        return []
    return list(tokenizer(text.rpartition(MARK)[2], add_special_tokens=False)["input_ids"])


def _added(tokenizer: PreTrainedTokenizerBase, behind: Sequence[int]) -> tuple[int, ...]:
    return tuple(token for token in behind if token in tokenizer.added_tokens_decoder)[:1]


def begun_by_template(
    tokenizer: PreTrainedTokenizerBase, prompt: Text, arguments: Mapping[str, Any] | None = None
) -> list[int]:
    r"""What a template makes a model begin its answer with, such as ``<think>\n``, as token ids.

    That is what it writes where an answer is due and not before one of an earlier turn. A part that it closes as
    well, such as an empty block of thoughts, is no beginning.
    """
    if isinstance(prompt, str) or tokenizer.chat_template is None or prompt[-1]["role"] == "assistant":
        return []
    said = [{"role": "assistant", "content": MARK}, {"role": "user", "content": "?"}]
    try:
        due = _Turns(tokenizer, prompt, arguments or {}).asked
        before, mark, _ = _Turns(tokenizer, [*prompt, *said], arguments or {}).asked.partition(MARK)
    except DataError:
        return []
    begun = due[len(before) :] if mark and due.startswith(before) else ""
    return [] if _CLOSED.search(begun) else list(tokenizer(begun, add_special_tokens=False)["input_ids"])


def encode_answers(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Text,
    answers: Sequence[Text],
    ends: Collection[int] = (),
    arguments: Mapping[str, Any] | None = None,
) -> list[Answered]:
    """Token ids of answers to a prompt.

    Args:
        tokenizer: Of the model.
        prompt: Text, or turns.
        answers: Text where the prompt is text, else turns. Text gets the tokenizer's end where it has none.
        ends: Tokens that end an answer, besides those of the tokenizer and of its template.
        arguments: Of the chat template; see `chat.template_arguments`.

    Returns:
        One for each answer. All are supervised from where the first of them parts from the prompt.

    Raises:
        DataError: The prompt is a conversation and the tokenizer has no chat template, or that refuses the answer.
    """
    texts = _of(tokenizer, prompt, arguments)
    ends = {*ends, *template_ends(tokenizer), tokenizer.eos_token_id}
    asked = texts.asked_ids
    wholes = [texts.ids(texts.whole(answer)) for answer in answers]
    start = min(shared(asked, ids) for ids in wholes)
    return [
        _supervised(ids, texts.spans(answer, ids, start, ends), start == len(asked), ends)
        for answer, ids in zip(answers, wholes, strict=True)
    ]


def encode_demonstration(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Text,
    answer: Text,
    ends: Collection[int] = (),
    arguments: Mapping[str, Any] | None = None,
    *,
    completion_only: bool = True,
    assistant_only: bool = False,
) -> Answered:
    """Token ids of a prompt with an answer to imitate: those of TRL's `SFTTrainer`.

    Unlike in `encode_answers` what a template writes behind the end is there, and learnt with all of an answer.

    Args:
        tokenizer: Of the model.
        prompt: Text, or turns.
        answer: Likewise. Text gets the tokenizer's end where it has none.
        ends: Tokens that end an answer, besides those of the tokenizer and of its template.
        arguments: Of the chat template; see `chat.template_arguments`.
        completion_only: Supervise nothing before the answer.
        assistant_only: Supervise the turns of the assistant alone, each with its end, in the prompt too unless
            `completion_only`.

    Raises:
        DataError: The tokenizer has no chat template for turns, or that refuses them, or the assistant has none.
    """
    texts = _of(tokenizer, prompt, arguments)
    ends = {*ends, *template_ends(tokenizer), tokenizer.eos_token_id}
    ids = texts.ids(texts.whole(answer))
    asked = texts.asked_ids if completion_only else []
    start = shared(asked, ids)
    # No token is predicted before the first one.
    supervised = [at >= max(1, start) for at in range(len(ids))]
    if assistant_only:
        said = _assistant_spans(
            tokenizer, as_turns(prompt, "user"), as_turns(answer, "assistant"), ids, ends, arguments
        )
        supervised = [
            marked and any(begin <= at < end for begin, end in said) for at, marked in enumerate(supervised)
        ]
    last = next(
        (token for token in reversed(ids) if token in ends or str(tokenizer.decode([token])).strip()), None
    )
    return Answered(ids, supervised, start == len(asked), last in ends)


def _assistant_spans(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Sequence[Message],
    answer: Sequence[Message],
    ids: list[int],
    ends: Collection[int],
    arguments: Mapping[str, Any] | None,
) -> list[tuple[int, int]]:
    """Where all turns of the assistant begin and end in a conversation's tokens."""
    turns = [*prompt, *answer]
    first = next((place for place, turn in enumerate(turns) if turn["role"] == "assistant"), None)
    if first is None:
        raise DataError("a conversation has no turn of the assistant, and assistant_only_loss learns nothing else")
    texts = _Turns(tokenizer, turns[:first], arguments or {})
    return texts.spans(turns[first:], ids, shared(texts.ids(texts.asked), ids), ends)


def _of(tokenizer: PreTrainedTokenizerBase, prompt: Text, arguments: Mapping[str, Any] | None) -> _Texts | _Turns:
    if isinstance(prompt, str):
        return _Texts(tokenizer, prompt)
    if tokenizer.chat_template is None:
        raise DataError("the answers are conversations, but the tokenizer has no chat template")
    return _Turns(tokenizer, prompt, arguments or {})


def shared(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many elements two sequences begin with alike."""
    both = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(both) if a != b), min(len(one), len(other)))


def as_turns(text: Text, role: str) -> Sequence[Message]:
    """Text as what is said by someone with a role; turns as they are."""
    return [{"role": role, "content": text}] if isinstance(text, str) else text


def without_prompt(prompt: Text, *answers: Text) -> tuple[Text, ...]:
    """Answers to a prompt without it, where all of them begin with it."""
    holds = bool(prompt) and all(len(prompt) < len(each) and each[: len(prompt)] == prompt for each in answers)
    return tuple(each[len(prompt) :] for each in answers) if holds else answers


class _Texts:
    """A prompt of text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: str) -> None:
        self._tokenizer, self.asked = tokenizer, prompt
        self._end = tokenizer.eos_token or ""

    @property
    def asked_ids(self) -> list[int]:
        """Without an end that the tokenizer puts behind them, which no model reads where an answer is due."""
        ids = self.ids(self.asked)
        while self._end and len(ids) > 1 and ids[-1] == self._tokenizer.eos_token_id:
            if self.asked.rstrip().endswith(self._end):
                break
            ids.pop()
        return ids

    def ids(self, text: str) -> list[int]:
        ids, begin = list(self._tokenizer(text)["input_ids"]), self._tokenizer.bos_token_id
        # A text that begins with the begin, as where a template was applied already, gets no second one.
        while begin is not None and ids[:2] == [begin, begin]:
            del ids[0]
        return ids

    def whole(self, answer: Text) -> str:
        assert isinstance(answer, str)
        return self.asked + answer + ("" if answer.endswith(self._end) else self._end)

    def spans(self, answer: Text, ids: list[int], start: int, ends: Collection[int]) -> list[tuple[int, int]]:
        """Where what is supervised begins and ends."""
        assert isinstance(answer, str)
        at = shared(self.ids(self.asked + answer), ids)
        return [(start, _end_at(self._tokenizer, ids, start, at, len(ids), ends) or len(ids))]


class _Turns:
    """A prompt that is a conversation."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, prompt: Sequence[Message], arguments: Mapping[str, Any]
    ) -> None:
        self._tokenizer, self._arguments = tokenizer, dict(arguments)
        self._prompt = [dict(turn) for turn in prompt]

    @cached_property
    def asked(self) -> str:
        """What a model reads where the answer is due."""
        return self._written(self._prompt, due=True)

    @property
    def asked_ids(self) -> list[int]:
        return self.ids(self.asked)

    def ids(self, text: str) -> list[int]:
        # A template writes special tokens itself.
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def whole(self, answer: Text) -> str:
        return self._written(self._with(answer))

    def spans(self, answer: Text, ids: list[int], start: int, ends: Collection[int]) -> list[tuple[int, int]]:
        """Where the turns of the assistant begin and end."""
        turns, first = self._with(answer), len(self._prompt)
        text = self._written(turns)
        at = self._places(text, ids)
        found: list[tuple[int, int]] = []
        # What says nothing in the text, as some templates leave out whole turns, is nowhere.
        said = [(*edges, place) for place in range(first, len(turns)) for edges in self._said(turns, place, text)]
        places: list[tuple[int, int, int]] = []
        for begin_at, stop_at, place in sorted(said):
            same = places.pop() if places and places[-1][2] == place else (begin_at, stop_at)
            places.append((same[0], max(same[1], stop_at), place))
        for number, (begin_at, stop_at, place) in enumerate(places):
            if turns[place]["role"] != "assistant":
                continue
            last = number + 1 == len(places)
            before, stop = found[-1][1] if found else start, at(stop_at)
            begin = self._due(turns[:place], text, at, before, begin_at) if place > first or found else start
            bound = len(ids) if last else max(at(places[number + 1][0]), stop)
            end = _end_at(self._tokenizer, ids, begin, stop, bound, ends)
            if end is None and not last:  # a template may end an earlier answer otherwise than the last one
                end = _end_at(self._tokenizer, ids, begin, stop, bound, self._earlier_ends)
            if end is None:
                own = len(ids) if last else at(shared(self._written(turns[: place + 1]), text))
                end = max(stop, min(own, bound))
            found.append((begin, end))
        return found

    @cached_property
    def _earlier_ends(self) -> tuple[int, ...]:
        return _added(self._tokenizer, _behind(self._tokenizer, "?"))

    def _places(self, text: str, ids: list[int]) -> Callable[[int], int]:
        """From a place in a text to that in its tokens: behind those that end before it."""
        if not self._tokenizer.is_fast:
            return lambda edge: shared(self.ids(text[:edge]), ids)
        told = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ends = list(accumulate((stop for _, stop in told["offset_mapping"]), max))
        return lambda edge: bisect_right(ends, edge)

    def _due(
        self, turns: list[dict[str, Any]], text: str, at: Callable[[int], int], before: int, begin_at: int
    ) -> int:
        """Where an answer to some turns begins: where the assistant is due, as far as that is told.

        What comes before may be written otherwise once it is answered, as where thoughts are dropped.
        """
        asked, begin = self._written(turns, due=True), at(begin_at)
        cue = asked.removeprefix(self._written(turns))
        places = (shared(asked, text), text.rfind(cue, 0, begin_at) + len(cue))
        return next((due for due in map(at, places) if before <= due <= begin), max(before, begin))

    def _with(self, answer: Text) -> list[dict[str, Any]]:
        assert not isinstance(answer, str)
        return [*self._prompt, *(dict(turn) for turn in answer)]

    def _said(self, turns: list[dict[str, Any]], place: int, text: str) -> Iterator[tuple[int, int]]:
        """Yield the spans of the text that change when what this turn says is replaced."""
        for turn in marked(turns[place]):
            other = rendered(self._tokenizer, [*turns[:place], turn, *turns[place + 1 :]], self._arguments)
            if text != other:
                begin = shared(text, other)
                yield begin, max(begin, len(text) - shared(text[::-1], other[::-1]))

    def _written(self, turns: list[dict[str, Any]], *, due: bool = False) -> str:
        return written(self._tokenizer, turns, self._arguments, due=due)


def _end_at(
    tokenizer: PreTrainedTokenizerBase, ids: list[int], begin: int, at: int, bound: int, ends: Collection[int]
) -> int | None:
    """Where an answer ends: behind its first end, be it written in it or by who writes the text around it.

    Args:
        tokenizer: Of the model.
        ids: Of the whole.
        begin: Where the answer begins.
        at: Where its own text ends.
        bound: Where the next text begins.
        ends: Tokens that end an answer.

    Returns:
        The place behind the end; None where there is none.
    """
    found = None
    for place in range(at - 1, begin - 1, -1):
        if ids[place] in ends:
            found = place + 1
        elif str(tokenizer.decode([ids[place]])).strip():
            break
    return found or next((place + 1 for place in range(at, bound) if ids[place] in ends), None)


def _supervised(ids: list[int], spans: list[tuple[int, int]], whole: bool, ends: Collection[int]) -> Answered:
    stop = max((end for _, end in spans), default=len(ids))
    mask = [False] * stop
    for begin, end in spans:
        mask[begin:end] = [True] * (end - begin)
    return Answered(ids[:stop], mask, whole, stop > 0 and ids[stop - 1] in ends)
