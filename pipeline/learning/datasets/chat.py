"""Render conversations as the text that a model reads, by its chat template and the arguments in a row.

A template may ask for today's date. Templates get one fixed date, so that equal runs have equal prompts on every
day.
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
"""Keys of turns that templates read, or that change nothing for a reader."""
DATE = "2024-07-26"
"""Date for templates that ask for today's date if none is set: the date that templates of Llama 3.1 use without a
clock."""
CLOCK = "strftime_now"
"""Function that templates call to ask for today's date; as an argument of a template, the date to return."""
ARGUMENTS = "chat_template_kwargs"
MARK = "\ue000\ue001"
"""Replaces the content of a turn, to find the place of that content in the text; no natural text contains this
mark."""
_DATED = (f"{{%- macro {CLOCK}(format) -%}}", "{%- endmacro %}{{ '' }}")
"""Beginning of a template made by `dated`: the parts before and after the date."""
_CODES = "aAbBcdHIjmMpSUwWxXyYZ"
"""Codes of strftime that templates use."""
FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions that templates raise, besides those of Jinja."""
_OURS = {"tokenize", "add_generation_prompt", "continue_final_message", "return_dict", "return_tensors", "padding"}
_OURS |= {"truncation", "max_length", "conversation", "tools", "return_assistant_tokens_mask", "tokenizer_kwargs"}


def template_arguments(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's arguments for its chat template, from TRL's columns ``tools`` and ``chat_template_kwargs``.

    A null argument counts as missing: Parquet has null if only other rows set the argument.

    Raises:
        DataError: ``tools`` is no list of JSON schemas, or ``chat_template_kwargs`` is no table or sets a reserved
            argument.
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
    """Render a conversation by the model's chat template. All rendering goes through this function.

    Args:
        tokenizer: Tokenizer with the template.
        turns: The conversation.
        arguments: Arguments from `template_arguments`, and under `CLOCK` the date for the template.
        due: Also write the generation prompt, the text with which an answer of the assistant begins.
        goes_on: Leave the last turn open, so that the model continues it.

    Raises:
        TemplateError: The template rejects these turns.
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
    """Return whether a template ignores content that is a string but writes a list of parts."""
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    def writes(content: object) -> bool | None:
        turns = [{"role": "user", "content": content}]
        with suppress(TemplateError, *FAULTS):
            return MARK in render_jinja_template(conversations=[turns], chat_template=template)[0][0]
        return None

    return writes(MARK) is False and writes([{"type": "text", "text": MARK}]) is True


def prompt_text(tokenizer: Templated, turns: Sequence[Message], arguments: Mapping[str, Any] | None = None) -> str:
    """Render a prompt, up to the start of an answer or as an open turn that the assistant has begun.

    Raises:
        DataError: The template rejects these turns.
    """
    begun = turns[-1]["role"] == "assistant"
    return written(tokenizer, turns, arguments, due=not begun, goes_on=begun)


def written(
    tokenizer: Templated, turns: Sequence[Message], arguments: Mapping[str, Any] | None = None, **how: bool
) -> str:
    """Render as `rendered` does, but raise errors that tell the owner of the rows what to do.

    Raises:
        DataError: The template rejects these turns, or leaves out their tool calls.
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
    """Return copies of a turn with other content: where the rendered text then differs, it comes from this turn.

    The words and the calls are replaced in separate copies: a template may write a tool's answer between them.
    """
    calls = turn.get("tool_calls")
    words = [{**turn, "content": MARK}] if turn["content"] or not calls else []
    return [*words, *([{**turn, "tool_calls": _marked_calls(calls)}] if calls else [])]


def refused(tokenizer: Templated, turns: Sequence[Message], error: Exception) -> str:
    """Describe why a template cannot render a conversation, and what to do about it."""
    roles = [str(turn.get("role")) for turn in turns]
    advice = "Write the turns as that template takes them, or choose another model"
    if "system" in roles:
        advice += "; it may take no system turn: one that a setting adds goes by datasets.NAME.system_prompt=null"
    said = " ".join(str(error).split())[:300] or type(error).__name__
    whose = tokenizer.name_or_path or "the model"
    return f"the chat template of {whose} refuses a conversation of {', '.join(roles[:8])}: {said}. {advice}"


def asks_clock(tokenizer: Templated) -> bool:
    """Return whether a tokenizer's template asks for today's date."""
    return CLOCK in str(tokenizer.chat_template or "")


class TemplateOfFolder:
    """The chat template of a model folder alone: needs neither torch nor the time to read a vocabulary.

    Attributes:
        name_or_path: The folder.
        chat_template: Text of the default template; None if the folder has none.
    """

    def __init__(self, folder: Path) -> None:
        """Read the template; raises `ForeignDataError` or `OSError` if that is not possible."""
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
        """Return the template, as a tokenizer does: the one for tools if there is one and tools are given."""
        return (self._templates.get("tool_use") if tools else None) or self.chat_template

    def apply_chat_template(self, turns: list[dict[str, Any]], **options: Any) -> str:
        """Render a conversation, as a tokenizer does, by the same function of transformers."""
        from transformers.utils.chat_template_utils import render_jinja_template

        given = {name: value for name, value in options.items() if name != "tokenize"}
        given.setdefault("chat_template", self.get_chat_template(given.get("tools")))
        made: Any = render_jinja_template(conversations=[turns], **{**self._tokens, **given})
        return str(made[0][0])


def refusal_of(template: TemplateOfFolder, row: Row) -> str:
    """Describe why a template cannot render the prompt of a row, alone or with one of the row's answers.

    "" if it can.
    """
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
    """Return the arguments of a row and the keys of its turns that the template ignores."""
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
    """Replace the arguments of tool calls.

    Names stay: the text of other turns, such as a tool's answer, may contain them.
    """
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
    """Return a template that uses midnight of a given day as the current time, replacing any day set before.

    transformers passes no functions to a template, so a macro before the template defines the function that it
    calls; the macro knows what each code of strftime stands for.
    """
    day = datetime.fromisoformat(date)
    names = {code: day.strftime(f"%{code}") for code in _CODES}
    names |= {f"-{code}": names[code].lstrip("0") or "0" for code in "dHIjmMS"}
    filters = "".join(f"|replace({json.dumps('%' + code)}, {json.dumps(name)})" for code, name in names.items())
    # Printing an empty string at the end keeps a line break with which the template begins.
    own = template.partition(_DATED[1])[2] if template.startswith(_DATED[0]) else template
    return f"{_DATED[0]}{{{{ format{filters} }}}}{_DATED[1]}{own}"


def _read(given: Any, name: str) -> Any:
    try:
        return json.loads(given) if isinstance(given, str) and given.strip() else given or None
    except ValueError as error:
        raise DataError(f"`{name}` is text and no JSON: {given[:80]!r}") from error


# -- answers -----------------------------------------------------------------------------------------------------
# Encodes answers of a dataset, with their prompts, as token ids. The ids are those of TRL's `DPOTrainer`: prompt
# and answer are tokenized together, since tokens may merge at the boundary, and since a template may write a
# prompt differently when an answer follows. Tokens after the end of the answer are left out, and only the
# assistant's turns of an answer are supervised. Shapes: T tokens of prompt and answer.


_CLOSED = re.compile(r"</[^<>]+>\s*$")
"""Matches text that ends in a closing tag."""


@dataclass(frozen=True)
class Answered:
    """A prompt with an answer.

    Attributes:
        ids: Token ids of prompt and answer, up to the end of the answer, shape [T].
        supervised: Whether each token is a training target, shape [T].
        whole: Whether `ids` begin with all tokens of the prompt, up to the start of the answer. Otherwise tokens
            merge there, or the template writes the prompt differently before an answer.
        ended: Whether the last of these tokens ends a completion.
    """

    ids: list[int]
    supervised: list[bool]
    whole: bool
    ended: bool


def template_ends(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the token that a chat template writes after an answer.

    Empty if there is no such token or no template.

    Also empty if the template writes the tokenizer's own end token, even with tokens between the answer and that
    token, as for Command A.
    """
    last, earlier = (_behind(tokenizer, after) for after in ("", "?"))
    if tokenizer.eos_token_id in last[: shared(last, earlier)]:
        return ()
    return _added(tokenizer, last)


def behind_end(tokenizer: PreTrainedTokenizerBase, ends: Collection[int]) -> str:
    """Return what a chat template writes after the token that ends the last answer; "" if it writes no end."""
    text, known = _text_behind(tokenizer, ""), tokenizer.added_tokens_decoder
    places = [(text.find(end), len(end)) for token in ends if token in known and (end := known[token].content)]
    first = min((place for place in places if place[0] >= 0), default=None)
    return "" if first is None else text[sum(first) :]


def _behind(tokenizer: PreTrainedTokenizerBase, after: str) -> list[int]:
    """Return the tokens of `_text_behind`."""
    text = _text_behind(tokenizer, after)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []


def _text_behind(tokenizer: PreTrainedTokenizerBase, after: str) -> str:
    """Return what a chat template writes after an answer, before a user's turn unless `after` is ""."""
    if tokenizer.chat_template is None:
        return ""
    said = zip(("user", "assistant", "user"), ("?", MARK, after), strict=True)
    turns = [{"role": role, "content": content} for role, content in said if content]
    try:
        return written(tokenizer, turns).rpartition(MARK)[2]
    except DataError:
        return ""


def _added(tokenizer: PreTrainedTokenizerBase, behind: Sequence[int]) -> tuple[int, ...]:
    return tuple(token for token in behind if token in tokenizer.added_tokens_decoder)[:1]


def begun_by_template(
    tokenizer: PreTrainedTokenizerBase, prompt: Text, arguments: Mapping[str, Any] | None = None
) -> list[int]:
    r"""Return the token ids with which a template makes a model begin its answer, such as ``<think>\n``.

    These are the tokens that a template writes at the start of a new answer, but not before an answer of an
    earlier turn. A block that the template also closes, such as an empty block of thoughts, does not count.
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
    """Encode answers to a prompt as token ids, with the prompt.

    Args:
        tokenizer: Tokenizer of the model.
        prompt: Text, or turns.
        answers: Text if the prompt is text, otherwise turns. Text gets the tokenizer's end token unless it ends
            with that token.
        ends: Tokens that end an answer, besides the end tokens of the tokenizer and its template.
        arguments: Arguments of the chat template; see `chat.template_arguments`.

    Returns:
        One result for each answer. All answers are supervised from the first token at which any of them differs
        from the prompt.

    Raises:
        DataError: The prompt is a conversation and the tokenizer has no chat template, or the template rejects the
            answer.
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
    """Encode a prompt with an answer to imitate, as TRL's `SFTTrainer` does.

    Unlike in `encode_answers`, the text that a template writes after the end is included and supervised, unless
    only the assistant's turns are.

    Args:
        tokenizer: Tokenizer of the model.
        prompt: Text, or turns.
        answer: Text, or turns. Text gets the tokenizer's end token unless it ends with that token.
        ends: Tokens that end an answer, besides the end tokens of the tokenizer and its template.
        arguments: Arguments of the chat template; see `chat.template_arguments`.
        completion_only: Supervise nothing before the answer.
        assistant_only: Supervise only the turns of the assistant, each with its end; also those in the prompt
            unless `completion_only`.

    Raises:
        DataError: The tokenizer has no chat template for turns, the template rejects them, or `assistant_only`
            finds no turn of the assistant.
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
    """Find the start and end of each turn of the assistant in the tokens of a conversation."""
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
    """Return the length of the common prefix of two sequences."""
    both = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(both) if a != b), min(len(one), len(other)))


def as_turns(text: Text, role: str) -> Sequence[Message]:
    """Return text as one turn of the given role, and turns unchanged."""
    return [{"role": role, "content": text}] if isinstance(text, str) else text


def without_prompt(prompt: Text, *answers: Text) -> tuple[Text, ...]:
    """Return answers without the prompt if all of them begin with it, otherwise unchanged."""
    holds = bool(prompt) and all(len(prompt) < len(each) and each[: len(prompt)] == prompt for each in answers)
    return tuple(each[len(prompt) :] for each in answers) if holds else answers


class _Texts:
    """Encodes a prompt that is text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: str) -> None:
        self._tokenizer, self.asked = tokenizer, prompt
        self._end = tokenizer.eos_token or ""

    @property
    def asked_ids(self) -> list[int]:
        """Token ids of the prompt without appended end tokens, which no model reads before an answer."""
        ids = self.ids(self.asked)
        while self._end and len(ids) > 1 and ids[-1] == self._tokenizer.eos_token_id:
            if self.asked.rstrip().endswith(self._end):
                break
            ids.pop()
        return ids

    def ids(self, text: str) -> list[int]:
        ids, begin = list(self._tokenizer(text)["input_ids"]), self._tokenizer.bos_token_id
        # A text that already begins with the begin token, as after a chat template, gets no second one.
        while begin is not None and ids[:2] == [begin, begin]:
            del ids[0]
        return ids

    def whole(self, answer: Text) -> str:
        assert isinstance(answer, str)
        return self.asked + answer + ("" if answer.endswith(self._end) else self._end)

    def spans(self, answer: Text, ids: list[int], start: int, ends: Collection[int]) -> list[tuple[int, int]]:
        """Return the start and end of the supervised tokens."""
        assert isinstance(answer, str)
        at = shared(self.ids(self.asked + answer), ids)
        return [(start, _end_at(self._tokenizer, ids, start, at, len(ids), ends) or len(ids))]


class _Turns:
    """Encodes a prompt that is a conversation."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, prompt: Sequence[Message], arguments: Mapping[str, Any]
    ) -> None:
        self._tokenizer, self._arguments = tokenizer, dict(arguments)
        self._prompt = [dict(turn) for turn in prompt]

    @cached_property
    def asked(self) -> str:
        """Text that a model reads before the answer."""
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
        """Return the start and end of each turn of the assistant."""
        turns, first = self._with(answer), len(self._prompt)
        text = self._written(turns)
        at = self._places(text, ids)
        found: list[tuple[int, int]] = []
        # Turns that leave no trace in the text, since some templates leave out whole turns, have no place.
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
            if end is None and not last:  # a template may end an earlier answer differently from the last one
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
        """Return a function that maps a place in a text to the number of tokens that end at or before it."""
        if not self._tokenizer.is_fast:
            return lambda edge: shared(self.ids(text[:edge]), ids)
        told = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ends = list(accumulate((stop for _, stop in told["offset_mapping"]), max))
        return lambda edge: bisect_right(ends, edge)

    def _due(
        self, turns: list[dict[str, Any]], text: str, at: Callable[[int], int], before: int, begin_at: int
    ) -> int:
        """Find the start of the assistant's answer to some turns: after the generation prompt, if it can be found.

        The text before an answer may differ once it is answered, for example if thoughts are dropped.
        """
        asked, begin = self._written(turns, due=True), at(begin_at)
        cue = asked.removeprefix(self._written(turns))
        places = (shared(asked, text), text.rfind(cue, 0, begin_at) + len(cue))
        return next((due for due in map(at, places) if before <= due <= begin), max(before, begin))

    def _with(self, answer: Text) -> list[dict[str, Any]]:
        assert not isinstance(answer, str)
        return [*self._prompt, *(dict(turn) for turn in answer)]

    def _said(self, turns: list[dict[str, Any]], place: int, text: str) -> Iterator[tuple[int, int]]:
        """Yield the spans of the text that change if the content of this turn is replaced."""
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
    """Find the end of an answer: after its first end token, in the answer itself or in the text that follows.

    Args:
        tokenizer: Tokenizer of the model.
        ids: Token ids of the whole conversation or text.
        begin: Start of the answer.
        at: End of the answer's own text.
        bound: Start of the next text.
        ends: Tokens that end an answer.

    Returns:
        The place after the end token; None if there is none.
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
