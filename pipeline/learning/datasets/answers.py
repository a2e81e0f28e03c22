"""Answers that a dataset has, as token ids with their prompts: what a template and a tokenizer make of the whole.

The ids are those of TRL's `DPOTrainer`: of prompt and answer together, since tokens may merge where the two meet,
and since a template may write a prompt otherwise where an answer follows. What is behind the end of the answer is
left out, and of its turns those of the assistant alone are supervised.

Shapes: T tokens of prompt and answer.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from pipeline.errors import DataError
from pipeline.learning.datasets.base import Message, Text
from pipeline.learning.datasets.chat import FAULTS, MARK, marked, rendered, written

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CLOSED = re.compile(r"</[^<>]+>\s*$")
"""Ends in a closing tag."""
_REFUSALS = (DataError, TemplateError, *FAULTS)
"""How templates fail at a conversation that they do not take."""


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
        text = rendered(tokenizer, turns)
    except _REFUSALS:
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
    except _REFUSALS:
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
    asked = texts.ids(texts.asked)
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
    asked = texts.ids(texts.asked) if completion_only else []
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

    def ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text)["input_ids"])

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
        said = [(place, edges) for place in range(first, len(turns)) if (edges := self._said(turns, place, text))]
        places = [(place, *map(at, edges)) for place, edges in said]
        for number, (place, begin, stop) in enumerate(places):
            if turns[place]["role"] != "assistant":
                continue
            last = number + 1 == len(places)
            before = found[-1][1] if found else start
            begin = self._due(turns[:place], text, at, before, begin) if place > first else start
            bound = len(ids) if last else max(places[number + 1][1], stop)
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
        self, turns: list[dict[str, Any]], text: str, at: Callable[[int], int], before: int, begin: int
    ) -> int:
        """Where an answer to some turns begins: where the assistant is due, as far as that is told."""
        due = at(shared(self._written(turns, due=True), text))
        return due if before <= due <= begin else max(before, begin)

    def _with(self, answer: Text) -> list[dict[str, Any]]:
        assert not isinstance(answer, str)
        return [*self._prompt, *(dict(turn) for turn in answer)]

    def _said(self, turns: list[dict[str, Any]], place: int, text: str) -> tuple[int, int] | None:
        """Where in the text is what a turn says: what is another where it says another; None for nowhere."""
        other = rendered(
            self._tokenizer, [*turns[:place], marked(turns[place]), *turns[place + 1 :]], self._arguments
        )
        begin = shared(text, other)
        return None if text == other else (begin, max(begin, len(text) - shared(text[::-1], other[::-1])))

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
