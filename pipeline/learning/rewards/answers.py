"""Find the answer in a completion and the solution in a row, for the rewards that compare them.

A solution may be text or a number; with a missing one (None, NaN, or only white space) completions get no score.
Reasoning in a completion is no answer, nor is text after the answer if the model goes on with a question of its
own.

Few imports on purpose: grading processes import this module.
"""

import json
import math
import re
from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import cache
from typing import Any

from pipeline.errors import ConfigError, DataError, install_command
from pipeline.learning.rewards.traits import RewardTraits, Text, judged, reward, stripped, text_of

_REASONING = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
)
"""Marks at the start and end of reasoning. The template may have written the start, so that a completion lacks it.
"""
_TURNS = re.compile(
    r"(?<!^)(?:<\|(?:im_start|im_end|start_header_id|eot_id|endoftext|end|user)\|>|</s>|<end_of_turn>|\[INST\])"
)
"""Marks between turns in templates, if a tokenizer shows them as text."""
_ANOTHER_QUESTION = re.compile(
    r"\n[ \t#*]*(?:Question|Problem|Exercise|Instruction|Q|Human|User)(?: ?\d+)?[ \t]*:"
)
_OPENING = re.compile(r"\\(?:f?boxed|fbox)\s*(\{|[^\s{}\\$.,]+)")

_ANSWER = ("<answer>", "</answer>")
"""Marks around the answer, as R1's prompt asks for."""
_HALF_WIDTH = {
    **{wide: wide - 0xFEE0 for wide in range(0xFF01, 0xFF5F)},
    **str.maketrans("\u3000\u3001\u3002\u2013\u2212", " ,.--", "\u200b\u2060\ufeff"),
}
"""Digits and punctuation of Chinese and Japanese texts, and other minus signs -> ASCII."""
_LISTED = re.compile(r"\s*\[\s*([\"']).*\1\s*\]\s*", re.DOTALL)
MARK = "####"
"""Mark before the answer in a worked solution of GSM8K."""
MARKED = re.compile(rf"{MARK}(?=[^\w\n]{{0,20}}\d)(?!\s*\d+[.)]\s+[A-Za-z])")
"""Matches the mark before a number. Without a number, or with the number of a section, the mark is a Markdown
heading."""
_COMMAND = re.compile(r"\\(?:text|mathrm|mbox|textbf|operatorname|begin|end)\*?\{[^{}]*\}|\\[A-Za-z]+")
_MOST_WORDS = 3
"""Largest number of words, outside LaTeX, in an answer that stands alone."""


def compares(**more: Any) -> RewardTraits:
    """Return the traits of a reward that compares an answer with the column `solution`."""
    return RewardTraits(pointwise=True, verifies=True, judges="correctness", refuses=odd_solution, **more)


def compared(
    completions: Sequence[Text], solution: Sequence[Any], reward: str, same: Callable[[Text, str], float | None]
) -> list[float | None]:
    """Score completions by comparing an answer in them with the solution.

    Args:
        completions: Texts or conversations.
        solution: Column of the rows; a missing solution gives no score.
        reward: Name of the reward, for messages.
        same: Compares a completion with a solution; returns a score, or None.

    Raises:
        DataError: A solution is neither text nor number.
    """
    return judged(completions, [_plain(each, reward) for each in solution], same)


def _plain(solution: Any, reward: str) -> str | None:
    """Format a solution as `written` does, in ASCII.

    The items of a list that was written as text are joined by commas.

    Some competition datasets have ``["2", "3"]`` for 2 and 3.
    """
    text = written(solution, reward)
    if text is None:
        return None
    listed = list_in(text) if _LISTED.fullmatch(text) else None
    if listed is not None and all(isinstance(each, str) for each in listed):
        text = ", ".join(each.strip("$") for each in listed)
    return half_width(text)


def list_in(text: str) -> list[Any] | None:
    """Parse a list that was written as text, in JSON or as Python prints it; return None for other text."""
    for read in (json.loads, literal_eval):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            found = read(text.strip())
            return found if isinstance(found, list) else None
    return None


def half_width(text: str) -> str:
    """Replace digits of any script, and full-width punctuation, by ASCII."""
    return text if text.isascii() else re.sub(r"\d", lambda digit: str(int(digit[0])), text.translate(_HALF_WIDTH))


def is_missing(value: object) -> bool:
    """Return whether a column value is missing: null, NaN, or only white space."""
    return (
        value is None
        or (isinstance(value, float) and math.isnan(value))
        or (isinstance(value, str) and not value.strip())
    )


def written(solution: Any, reward: str) -> str | None:
    """Format a solution as text, or None for a missing one.

    Whole numbers have no point, even if they are floats because other values of their column are missing: 42.0 is
    ``42``.

    Args:
        solution: Value in the row.
        reward: Name of the reward, for messages.

    Raises:
        DataError: The solution is neither text nor a number.
    """
    if is_missing(solution):
        return None
    if problem := odd(solution):
        raise DataError(f"the reward '{reward}' {problem}")
    if isinstance(solution, float) and math.isfinite(solution):
        return format(Decimal(int(solution) if solution.is_integer() else repr(solution)), "f")
    return str(solution)


def odd(solution: object) -> str:
    """Describe what is wrong with a solution that is neither text nor a number; "" otherwise."""
    if solution is None or (isinstance(solution, str | int | float) and not isinstance(solution, bool)):
        return ""
    found = f"{solution}".lower() if isinstance(solution, bool) else f"a {type(solution).__name__}"
    return f"compares completions with 'solution', which must be text or a number, found {found}; write it as text"


def odd_solution(columns: Mapping[str, Any]) -> str:
    """Describe what is wrong with the solution of a row, for `RewardTraits.refuses`."""
    return odd(columns.get("solution"))


def answer_of(solution: str) -> str | None:
    """Return the answer in a solution: in its last box, after ``####``, or all of it; None for prose."""
    if last_box(solution) is not None:
        return last_boxed(solution)
    if MARK in solution:
        return solution.rpartition(MARK)[2].strip()
    text = solution.strip()
    words = re.findall(r"[A-Za-z]{2,}", _COMMAND.sub(" ", text))
    return None if "\n" in text or len(words) > _MOST_WORDS else text.strip("$")


def gold_box(columns: Mapping[str, Any]) -> Sequence[str]:
    """Return the solution of a row in a box, as a right completion has it, for `RewardTraits.gold`.

    Prose unchanged.
    """
    return gold_texts(columns.get("solution"), r"\boxed{{{}}}")


def gold_texts(solution: object, form: str) -> Sequence[str]:
    """Format a solution with a template, prose unchanged; return nothing for a missing one.

    Args:
        solution: Value in the row.
        form: Template with ``{}`` for the answer.
    """
    said = None if odd(solution) else _plain(solution, "")
    if said is None:
        return []
    answer = answer_of(said)
    return [said if answer is None else form.format(answer)]


def answer_part(text: str) -> str:
    """Return the part of a completion that may hold its answer: after the reasoning, up to a question of its own.

    Unfinished reasoning holds no answer. If ``<answer>`` marks a part, only that part counts. Digits and
    full-width punctuation become ASCII.
    """
    for opening, closing in _REASONING:
        head, begun, reasoning = text.rpartition(opening)
        if begun and closing not in reasoning:
            text = head
        text = text.rpartition(closing)[2]
    text = half_width(text.rpartition(_ANSWER[0])[2].partition(_ANSWER[1])[0])
    text = _TURNS.split(text, maxsplit=1)[0]
    answered = re.search(r"boxed|\d", text)
    another = answered and _ANOTHER_QUESTION.search(text, answered.end())
    return text[: another.start()] if another else text


def last_box(text: str) -> tuple[int, str | None] | None:
    r"""Find the last ``\boxed{...}``; return its start and its content, including nested braces.

    The content of a box that was cut off is None, whatever earlier boxes hold. ``\fbox`` and ``\fboxed`` count
    too, and ``\boxed 7`` holds ``7``.
    """
    openings = list(_OPENING.finditer(text))
    return (openings[-1].start(), _inside(text, openings[-1])[0]) if openings else None


def last_boxed(text: str) -> str | None:
    """Return the content of the last box in a text; None if there is no box, or if it was cut off."""
    found = last_box(text)
    return found and found[1]


def _inside(text: str, opening: re.Match[str]) -> tuple[str | None, int]:
    """Return the content of a box, and the place after it; None if it was cut off."""
    if opening[1] != "{":
        return opening[1], opening.end()
    depth = 1
    for brace in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, opening.end()):  # \{ and \} are text
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[opening.end() : brace.start()], brace.end()
    return None, len(text)


# -- the bare answer ---------------------------------------------------------------------------------------------

_FORMULA = r"(?:\$\$?[^$]+\$\$?|\\\((?:(?!\\[()]).)+\\\)|\\\[(?:(?!\\\]|(?<!\\)\\\[).)+\\\])"
_FORMULAS = re.compile(
    rf"{_FORMULA}(?:\s*(?:,|;|,?\s*\b(?:and|or)\b)\s*{_FORMULA})*\s*(?:\\?%|percent)?", re.DOTALL
)
"""Matches a formula, and formulas joined to it."""
_STATED = re.compile(
    r"(?:^[^\n]*\b(?:answer|option|choice)\b[\s*_\"]*(?:is|are|[:=])|答案】?[是为]?:?|故选|选项[是为])"
    r"[\s*_:]*(?:(?:option|choice)\s+)?(?=\S)",
    re.IGNORECASE | re.MULTILINE,
)
"""Matches the phrases with which prose states its answer."""
_CONCLUDED = re.compile(r".*(?:\b(?:is|are|equals?|get)\b|(?<![<>!])=(?![^{}]*\}))[\s*_]*(\S.*?)[\s*_!]*")
"""Matches the value that a line ends with, after "is", "equals" or the like."""
_JOINED = re.compile(r"\$\s*(?:[,;]|,?\s*\b(?:and|or)\b)\s*\$[^$]+\$[.!]?\s*$")
"""Matches joined formulas at the end of a line; the last one alone is no answer."""
_SENTENCE = re.compile(r"(?s:.*?)(?=\n|[.!]\s|[.!]?\s+\((?=[A-Za-z])|[.!]*$)")
_OPTION = re.compile(r"\(?[A-J](?:[).:]|$)")
_DENIED = re.compile(r"\b(?:not|cannot|than|at (?:least|most))\b|n't\b")
_WORD = re.compile(
    r"(?<![^\W\d_])(?=[^\W\d_])(?!(?:or|and|sqrt|pi|sin|cos|tan|log|ln|exp|[^a-z\W]+)\b)[^\W\d_]{2,}"
)
_BETWEEN_BOXES = re.compile(
    r"(?:[\s,;$]|\b[A-Za-z](?:_\{?\d\}?)?\s*=|\\[()\[\]]|\\q?quad|\\text\{[^{}]*\b(?:and|or)\b[^{}]*\}|\b(?:and|or)\b)*"
)
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALED = re.compile(
    rf"(?<![\d.,])(\d[\d,]*(?:\.\d+)?)(?:\s|~|-|\\[,;: ])*(?:\\text\{{\s*)?({'|'.join(_SCALES)})\b(?:\s*\}})?"
)


def bare_answer(text: str, most_words: int = 1) -> str | None:
    """Find the answer of a text without its introduction, in the first of these places that the text has.

    The last box, with boxes joined to it; the text after the mark of GSM8K; the whole text, if it is a formula or
    has few words; a phrase that states the answer; the value after "is" or "=" in the last line; the last number,
    with its attached signs, or the last formula. None if there is no answer, or if the text negates it.

    Args:
        text: Text from `answer_part`.
        most_words: Largest number of words in a text that is an answer by itself.
    """
    text = _SCALED.sub(lambda found: f"{Decimal(found[1].replace(',', '')).scaleb(_SCALES[found[2]]):f}", text)
    if openings := list(_OPENING.finditer(text)):
        return _joined(text, openings)
    if marks := list(MARKED.finditer(text)):
        return bare_answer(text[marks[-1].end() :].strip().partition("\n")[0], most_words)
    if (last := re.search(rf"{MARK}[ \t]*(\S[^\n]*)\s*\Z", text)) is not None:
        return bare_answer(last[1].replace(MARK, ""), most_words)
    text = text.strip()
    stated = [text[found.end() :] for found in _STATED.finditer(text)]
    if not stated and (_FORMULAS.fullmatch(text.rstrip(".")) or _is_bare(text, most_words)):
        return text
    with_values = [each for each in stated if _OPTION.match(each) or re.match(r".*[\d$\\]", each)]
    stated = (with_values or stated)[-1:]  # words may be none: "I am sure that the answer is right"
    if with_values and not _FORMULAS.match(stated[0]):
        text = _sentence(stated[0])
    line = text.rpartition("\n")[2]
    concluded = None if _JOINED.search(line) else _CONCLUDED.fullmatch(line)
    for said in [*stated, *([concluded[1]] if concluded and re.search(r"\d|\$", concluded[1]) else [])]:
        sentence = _sentence(said)
        if _DENIED.search(sentence):
            return None
        if formula := _FORMULAS.match(said):
            return formula[0]
        if _OPTION.match(sentence) or (_is_bare(sentence) and (with_values or not re.search(r"\d", text))):
            return sentence
        if _is_bare(sentence) and re.search(r"\d", sentence):
            return sentence
    formulas = list(_FORMULAS.finditer(text))
    behind = text[formulas[-1].end() :] if formulas else text
    found_numbers = re.findall(r"(?<!\S)\S*\d\S*(?: [ap]\.?m\b)?", behind)
    if numbers := [each for each in found_numbers if each.count("{") == each.count("}")]:
        return None if _DENIED.search(behind) else numbers[-1].strip("*_,.!?:;()\"'")
    return formulas[-1][0] if formulas else None


def _joined(text: str, openings: Sequence[re.Match[str]]) -> str | None:
    """Return the content of the last box and of boxes joined to it: each may hold one of several answers."""
    parts: list[str] = []
    start = len(text)
    for opening in reversed(openings):
        inside, end = _inside(text, opening)
        if parts and not _BETWEEN_BOXES.fullmatch(text, end, start):
            break
        if inside is None:
            return None
        parts.insert(0, inside)
        start = opening.start()
    return ", ".join(dict.fromkeys(parts))


def _sentence(said: str) -> str:
    found = _SENTENCE.match(said)
    return (found[0] if found else said).strip(" *_")


def _is_bare(text: str, most_words: int = 1) -> bool:
    """Return whether a text is an answer that stands alone, rather than prose with an answer in it."""
    more = "\n" in text or _FORMULAS.search(text) or re.search(r"[A-Za-z][\s*_\"]*:", text)
    return not more and len(_WORD.findall(_COMMAND.sub(" ", text))) <= most_words


# -- matching ----------------------------------------------------------------------------------------------------
# Reward 1 for exactly the text of the solution, else 0.


def _right(columns: Mapping[str, Any]) -> Sequence[str]:
    text = written(columns["solution"], "exact_match")
    return [] if text is None else [text]


@reward(compares(isolated=False, answer=stripped, right=_right, gold=_right, version=2))
def exact_match(completions: Sequence[Text], solution: Sequence[Any], **_: Any) -> list[float | None]:
    """Compare each completion with its solution, both stripped of surrounding white space.

    Args:
        completions: Texts or conversations.
        solution: Column of that name; numbers as they are written. A row without a solution gets None.

    Raises:
        DataError: A solution is neither text nor number.
    """
    wanted = [written(each, "exact_match") for each in solution]
    return judged(completions, wanted, lambda given, right: float(text_of(given).strip() == right.strip()))


# -- length ------------------------------------------------------------------------------------------------------
# Minus the length of a completion, to be mixed with another reward so that short answers win ties.


@reward(RewardTraits(pointwise=True, verifies=False, graded=True, judges="length", isolated=False, version=2))
def length(completion_ids: Sequence[Sequence[int]], per: float = 100.0, **_: Any) -> list[float | None]:
    """Score completions by -1 for every `per` tokens.

    Args:
        completion_ids: Sampled token ids, including an end-of-text token.
        per: Number of tokens that cost 1.
    """
    return [-len(ids) / per for ids in completion_ids]


# -- boxed -------------------------------------------------------------------------------------------------------
# Reward 1 for the text of the solution inside the last ``\boxed{...}``, else 0.


_SPACING = re.compile(r"\\[,;:!> ]|\\left(?![a-zA-Z])|\\right(?![a-zA-Z])|(?<!\d)\s+|\s++(?!\d+/\d)|[~$]")
"""Matches spacing in LaTeX, except the space in a mixed number."""
_FONT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\{([^{}]*)\}")
_THOUSANDS = re.compile(r"-?\d{1,3}(?:(?:,|\{,\})\d{3})+(?:\.\d+)?")


def plain(answer: str) -> str:
    """Remove spacing, fonts, ``$`` and a final point from an answer, so that ways of typing it compare equal."""
    text = (
        _SPACING.sub("", _FONT.sub(r"\1", answer))
        .replace("\\dfrac", "\\frac")
        .replace("\\tfrac", "\\frac")
        .rstrip(".")
    )
    return re.sub(r"[,{}]", "", text) if _THOUSANDS.fullmatch(text) else text


def boxed_answer(completion: Text) -> str | None:
    """Return the boxed answer of a completion in plain form, or None."""
    return _boxed(answer_part(text_of(completion)))


def _boxed(text: str) -> str | None:
    inside = last_boxed(text)
    return None if inside is None else plain(inside) or None


def _gold(columns: Mapping[str, Any]) -> Sequence[str]:
    r"""Return the solution in a box, even if it is prose."""
    return [text if "boxed" in text else rf"\boxed{{{text}}}" for text in gold_box(columns)]


@reward(compares(answer=boxed_answer, gold=_gold, version=5))
def boxed(completions: Sequence[Text], solution: Sequence[Any], **_: Any) -> list[float | None]:
    r"""Compare boxed answers as text. For mathematical equality use `math_verify`.

    Args:
        completions: Texts or conversations.
        solution: Column with a solution that boxes its answer, or with only the answer. Rows without a solution
            get None.

    Raises:
        DataError: A solution is neither text nor number.
    """
    return compared(completions, solution, "boxed", same_text)


def same_text(given: Text, wanted: str) -> float | None:
    """Return 1 if the completion boxes the solution's answer, as text, else 0.

    None if the solution has no answer.
    """
    right = plain(wanted) if last_box(wanted) is None else _boxed(wanted)
    return None if right is None else float(boxed_answer(given) == right)


# -- choice ------------------------------------------------------------------------------------------------------
# Reward 1 for the letter of the solution, else 0.


_LETTER = re.compile(r"[({\[]?([A-Za-z])[)}\]]?[.:]?|\(?([A-Z])[).:]\s*\S.*", re.DOTALL)
"""Matches a letter alone, or before the text of the choice."""
_CHOSEN = re.compile(
    r"(?:\b(?i:answer|option|choice)[\s*_\"']*(?:(?i:is|(?:would|should|must) be)\b|[:=])|答案】?[是为]?:?|故选:?)"
    r"[\s*_:\"']*(?:(?i:option|choice)\s+)?(?=(?P<said>\S[^\n]*))"
    r"|(?<![A-Za-z])[(\[*]{0,4}(?P<right>[A-Z])[)\]*]*\s+is\s+(?:the\s+)?(?:correct|right|best)\b"
)
"""Matches phrases that state the chosen letter; there may be several in a line."""
_FIRST = re.compile(r"[(\[{*\"]*([A-Za-z])(?![A-Za-z'])[)\]}*\"]*")
_AMONG = re.compile(r"\s*(?:or|and|nor|[/,&])\W*[A-Za-z](?![A-Za-z])", re.IGNORECASE)


def chosen_letter(completion: Text) -> str | None:
    """Return the letter that a completion chooses: in its last box, else the last one stated, else its whole text.

    None if the completion states no letter, or several as in "A or B". A small letter counts if it stands alone.
    """
    text = answer_part(text_of(completion))
    parts = [text[: another.start()] for another in _ANOTHER_QUESTION.finditer(text)]
    return next((letter for part in [*parts, text] if (letter := _letter_in(part))), None)


def _letter_in(text: str) -> str | None:
    if (box := last_box(text)) is not None:
        return _only_letter(box[1] or "")
    stated = [found["right"] or _first_letter(found["said"]) for found in _CHOSEN.finditer(text)]
    if letters := [letter for letter in stated if letter is not None]:
        return letters[-1] or None
    if stated:
        return None
    return _only_letter(text) or _only_letter(text.strip().rpartition("\n")[2])


def _only_letter(text: str) -> str | None:
    found = _LETTER.fullmatch(_FONT.sub(r"\1", text).strip(" $*_\n"))
    return found and (found[1] or found[2]).upper()


def _first_letter(said: str) -> str | None:
    """Return the first letter of a statement, "" for one of several as in "A or B".

    None if it states no letter; in "a tie" and "I think" the letter is a word.
    """
    said = re.sub(r"\\[()\[\]]|\$", "", _FONT.sub(r"\1", said))
    found = _FIRST.match(said)
    if found is None:
        return None
    if _AMONG.match(said, found.end()):
        return ""
    is_word = found[0] in ("A", "I") or found[0].islower()
    return None if is_word and re.match(r"\s+\S", said[found.end() :]) else found[1].upper()


def _choice_gold(columns: Mapping[str, Any]) -> Sequence[str]:
    return gold_texts(columns.get("solution"), "Answer: {}")


@reward(compares(isolated=False, answer=chosen_letter, gold=_choice_gold))
def choice(completions: Sequence[Text], solution: Sequence[Any], **_: Any) -> list[float | None]:
    """Compare the letters of choices.

    Args:
        completions: Texts or conversations.
        solution: Column with the letter. Rows without one, or with more than a letter, get None.

    Raises:
        DataError: A solution is neither text nor number.
    """
    return compared(completions, solution, "choice", _same_letter)


def _same_letter(given: Text, wanted: str) -> float | None:
    letter = _only_letter(wanted)
    return None if letter is None else float(chosen_letter(given) == letter)


# -- gsm8k -------------------------------------------------------------------------------------------------------
# Reward 1 for the number of the solution: in the last ``\boxed{}`` or after ``####``, else the last number.


_NUMBER = re.compile(
    r"(?<![\w.)])(?P<sign>-?)\$?(?P<minus>-?)"  # -$5 and $-5; no sign in "10-20", nor in the bullet "- 5"
    r"(?P<digits>\d{1,3}(?:,\d{3})+(?!\d)|\d+|(?=\.\d))"
    r"(?:\.(?P<decimals>\d+))?(?:[eE](?P<power>[+-]?\d{1,3})(?!\w))?",
    re.ASCII,
)
_THOUSANDS_APART = re.compile(r"(?<=\d)(?:\{,\}|,?\\[,;:! ])(?=\d{3}(?!\d))")
r"""Matches separators between groups of digits in LaTeX: ``8{,}000``, ``8\,000``, ``8,\!000``."""
_SPACED = re.compile(r"(?<![\d.,])\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\d)")
"""Matches digits separated by spaces; only used in text that is an answer and nothing else."""
_FEW_WORDS = 3
"""Largest number of words in a text that is an answer and nothing else."""
_UNIT = re.compile(
    r"\\(?:text|mathrm|mbox|textbf)\{[^{}\d]*\}(?:\^\{?\d\}?)?|(?<=[A-Za-z])\^\{?\d\}?|\^\{?\\circ\}?"
)
_NO_NUMBER = re.compile(r"\\(?:[dt]?frac|sqrt|pi|times|cdot)|\^|\d\s*/\s*\d")
"""Matches signs that make digits beside them part of another value, such as a fraction."""


def last_number(text: str) -> str | None:
    """Return the last number of a text in plain notation: ``$1,250.50`` becomes ``1250.5``.

    None if there is no number.
    """
    numbers = list(_NUMBER.finditer(_THOUSANDS_APART.sub("", text).replace("\\$", "$")))
    if not numbers:
        return None
    found = numbers[-1]
    whole, decimals = found["digits"].replace(",", ""), found["decimals"] or ""
    if found["power"]:
        plain = format(Decimal(f"{whole}.{decimals}E{found['power']}"), "f")
        whole, _, decimals = plain.partition(".")
    whole, decimals = whole.lstrip("0") or "0", decimals.rstrip("0")
    number = f"{whole}.{decimals}" if decimals else whole
    return f"-{number}" if number != "0" and (found["sign"] or found["minus"]) else number


def final_number(completion: Text) -> str | None:
    """Return the number in the last box, or after the last ``####`` if that comes later; else the last number."""
    return _final(answer_part(text_of(completion)))


def _final(text: str) -> str | None:
    box, mark = last_box(text), next(reversed(list(MARKED.finditer(text))), None)
    if mark is not None and (box is None or box[0] < mark.start()):
        return _only(text[mark.end() :].strip().split("\n", 1)[0])
    if box is None:
        return _only(text) if len(text.split()) <= _FEW_WORDS else last_number(text)
    return None if box[1] is None else _only(box[1])


def _only(answer: str) -> str | None:
    """Return the number in a text that is only an answer; None for another value, such as a fraction."""
    said = answer.rpartition("=")[2].strip().partition(" (")[0]
    said = _SPACED.sub(lambda found: re.sub(r"\s", "", found[0]), _UNIT.sub("", said))
    return None if _NO_NUMBER.search(said) else last_number(said)


def _gsm8k_gold(columns: Mapping[str, Any]) -> Sequence[str]:
    """Return the answer in a box if the solution has one, otherwise after the mark."""
    solution = columns.get("solution")
    boxed = isinstance(solution, str) and last_box(solution) is not None
    return gold_box(columns) if boxed else gold_texts(solution, "#### {}")


@reward(compares(isolated=False, answer=final_number, gold=_gsm8k_gold, version=4))
def gsm8k(completions: Sequence[Text], solution: Sequence[Any], **_: Any) -> list[float | None]:
    """Compare final numbers.

    Args:
        completions: Texts or conversations.
        solution: Column with the worked solution or only the number. Rows without a solution, or without a number
            in it, get None.

    Raises:
        DataError: A solution is neither text nor number.
    """
    return compared(completions, solution, "gsm8k", _same)


def _same(given: Text, wanted: str) -> float | None:
    number = _final(wanted)
    return None if number is None else float(final_number(given) == number)


# -- vader -------------------------------------------------------------------------------------------------------
# Sentiment of a completion by the lexicon of VADER (Hutto and Gilbert 2014); needs no model and no network.


@cache
def _analyzer() -> Any:
    try:
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
    except ImportError as error:
        raise ConfigError(f"the reward 'vader' needs a package: {install_command('sentiment')}") from error
    return SentimentIntensityAnalyzer()


@reward(
    RewardTraits(
        pointwise=True,
        verifies=False,
        graded=True,
        judges="sentiment",
        isolated=False,
        packages=("vaderSentiment",),
        version=2,
    )
)
def vader(
    prompts: Sequence[Text],
    completions: Sequence[Text],
    unit: bool = False,
    with_prompt: bool = False,
    **_: Any,
) -> list[float | None]:
    """Score completions by VADER's compound score, from -1 (negative) to 1 (positive).

    Args:
        prompts: Texts or conversations.
        completions: Texts or conversations.
        unit: Map the score to [0, 1], which a Bernoulli value needs.
        with_prompt: Score prompt and completion as one text.
    """
    scores: list[float | None] = []
    for prompt, completion in zip(prompts, completions, strict=True):
        text = (text_of(prompt) if with_prompt else "") + text_of(completion)
        compound = float(_analyzer().polarity_scores(text)["compound"])
        scores.append((compound + 1) / 2 if unit else compound)
    return scores
