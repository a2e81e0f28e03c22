r"""Reward 1 for an answer that equals the solution mathematically, judged by the package `math-verify`.

The package looks for mathematics in a text, by ``$`` and the like, and takes the first number of ``3\sqrt{13}``
alone. So an answer that stands there by itself, of a row or a box, is put into a box of its own (Skywork-OR1#16).

Its parsing and simplification may run for ever on hostile input. Its own timeouts are switched off: they need
`signal.alarm`, and the processes that grade have a deadline already.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from pkgutil import resolve_name
from typing import Any
from unicodedata import normalize

from pipeline.errors import ConfigError, install_command
from pipeline.learning.rewards.answers import (
    MARK,
    MARKED,
    answer_part,
    boxes,
    compared,
    compares,
    gold_box,
    half_width,
    plain,
    same_text,
)
from pipeline.learning.rewards.traits import Text, reward, text_of

_DELIMITERS = re.compile(r"\$.+\$|\\\(|\\\[", re.DOTALL)
_WHOLE = re.compile(r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\(((?:(?!\\\)).)+)\\\)|\\\[((?:(?!\\\]).)+)\\\]", re.DOTALL)
"""One formula and nothing beside it."""
_LAST_MARK = re.compile(rf"{MARK}[ \t]*(\S[^\n]*)\s*\Z")
"""With an answer on the last line, be it no number."""
_LEAD = re.compile(
    r"(?:[=-]>|[\s=:~\u2192\u21d2\u2234]|\\(?:approx|sim(?:eq)?|therefore|Rightarrow|implies)(?![a-z]))*"
    r"(?:([^\W\d_]{2,})[\s,:.]+(?=[-+$\\(\[{.\d]|(?:[A-Za-z]|[A-Z]{2,3})\s*=))?[\s=:]*"
)
"""A word before an answer, as in ``so 5``."""
_NO_LATIN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
"""Words of Chinese, Japanese and Korean, which have no spaces around them."""
_CONCLUDED = re.compile(
    r"(?:\b(?:answers?|option|choice)\b[\s*_\"]*(?:is|are|[:=])|\u7b54\u6848[\u662f\u4e3a\u9009]?|\u6545\u9009)[\s*_:]*(\S.*?)\s*$",
    re.IGNORECASE | re.MULTILINE,
)
"""How prose states its answer, at the end of a line."""
_LAST = re.compile(r".*(?:\b(?:is|are|equals?)\b|=)[\s*_]*(\S.*?)[\s*_!]*\Z")
"""What the last line says that something is, be it not called an answer."""
_COUNTED = re.compile(r"[-$\d.,]+\s+[A-Za-z]\.?")
"""A number and a letter that may be its unit."""
_PARTED = re.compile(r"\d+(?::\d+)+(?:\s*[ap]\.?m\b\.?)?|\d+\s*[ap]\.?m\b\.?", re.IGNORECASE)
"""A time of day or a ratio, of which no part is a number by itself."""
_NEGATIVE = re.compile(r"\b(?:minus|negative)\s+(?=\d)", re.IGNORECASE)
_FONT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\{([^{}]*)\}")
_OPTION = re.compile(
    r"(?:\(([A-J])\)|([A-J])[).:]|(?:[Oo]ption|[Cc]hoice)[\\\s~]+\(?([A-J])\)?)(?=$|[\\\s~])"
    r"(?:\\[ ,;:!]|\\q?quad(?![a-z])|[\s~])*(?!(?:or|and)\b)(?:$|[\w$-]|\\[dt]?frac|\\sqrt)"
)
"""The letter of a choice, alone or with what is chosen behind it."""
_OPTIONS = re.compile(r"\(?[A-J]\)?(?:(?:[\s,]|\band\b)+\(?[A-J]\)?)+")
"""Letters of several choices."""
_DRESS = re.compile(
    r"\\(?:(?:bf|rm|it|(?:display|text|script)style|boldsymbol|bm|underline)(?![A-Za-z])|(?:text)?color\{\w+\}"
    r"|hspace\{[^{}]*\}|text\{[^{}\d]*(?:\bis|:)\s*\})"
)
"""What changes how an answer looks, or says that it is one."""
_ARGUMENT = re.compile(
    r"(\\[dt]?frac|\\sqrt(?:\[[^]]*\])?|\^|\\mathbb)\s*"
    r"(\\pi(?![a-z])|(?<=\])\d|(?<=bb )[A-Z]|\\[dt]?frac(?:\d\d|\{[^{}]*\}\{[^{}]*\}))"
)
"""A command with an argument that has no braces around it, which the parser needs."""
_CALL = re.compile(
    r"(?:\\?[A-Za-z]{1,20}|\\(?:mathbb|mathrm)\{[A-Z]\})\s*[(\[](?:[^()\[\]=a-z]+|[^()\[\]=]*(?:[<>|]|\\[gl]e)[^()\[\]=]*)[)\]]"
    r"\s*=\s*(?=[^=]+$)"
)
"""The name of a value, such as ``P(X > 2) =``; none of a function."""
_POINT = re.compile(r"[A-Z]\s*(?=\([^()]*,[^()]*\)$)|^[A-Za-z]\s*\\in(?![a-z])\s*")
"""The name of a point, or of what is in a set."""
_EITHER = re.compile(r"\\(?:lor|vee)(?![a-z])|\\text\{\s*or\s*\}|\u6216")
_EITHER_REGION = re.compile(r"[^()\[\]]*(?:[<>]|\\[gl]e)[^()\[\]]*")
"""Inequalities, of which some join those that may hold by the sign that joins sets."""
_BUILT = re.compile(r"\\\{\s*[A-Za-z]\s*(?:\\(?:mid|vert)(?![a-z])|[|:])([^{}]*(?:[<>]|\\[gln]e)[^{}]*)\\\}")
"""A set by the inequality of what is in it."""
_PARTS = re.compile(r"\d+(?:\s*:\s*\d+){2,}")
"""A ratio of three or more, which the parser would divide from left to right."""
_CYCLE = r"\d+(?:(?:\s|\\[,;: ])+\d+)+"
_SEQUENCE = re.compile(rf"{_CYCLE}|(?:\({_CYCLE}\))+")
"""Numbers in their order, as of cycles, which the parser would multiply."""
_REPEATING = re.compile(r"(\d+)\.(\d*)\\(?:overline|bar|dot)\s*(?:\{(\d{1,50})\}|(\d))")
_SEVERAL_UNITS = r"(?:\d+(?:\.\d+)?\s+[A-Za-z]{2,}[,\s]*(?:and\s+)?){2,}"
_LETTER = re.compile(r"\\(?:mathrm|operatorname|mathit|text)\{\s*([ei]|exp|sin|cos|tan|log|ln)\s*\}")
_FUNCTION = re.compile(r"(?<![A-Za-z\\])(exp|sin|cos|tan|log|ln)(?=\s*\(|\s+[\\\w]|_)")
_ROOT = re.compile(r"(?<![A-Za-z\\])sqrt\s*(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+))")
_DEGREES = re.compile(r"(\\(?:sin|cos|tan|cot|sec|csc)(?:\^\{?\d\}?)?\s*)(\(?)\s*(\d[\d.]*)\s*\^\{?\\circ\}?")
"""An angle of which a function is taken, whose sign of degrees is no unit that may be left out."""
_NATURAL = re.compile(r"\\log_(?:e(?![a-z])|\{e\})")
_LOG = re.compile(r"\\log(?![a-z]|\s*_)")
"""A logarithm that does not say its base."""
_SETS = re.compile(r"[A-Z](?:\s*\\cup\s+[A-Z])+|[A-Z](?:\s*\\cap\s+[A-Z])+")
"""Sets by their names, in any order."""
_UNICODE = re.compile(r"√(?:\(([^()]*)\)|(\d+|[A-Za-zπ]))|([⁻⁺⁰¹²³⁴-⁹]+)|(?<=\w)([₀-₉]+)|([¼-¾⅐-⅞])")
"""Roots, powers, indices and fractions as they are written without LaTeX."""
_SIGNS = str.maketrans(
    {"∞": r"\infty ", "≤": r"\leq ", "≥": r"\geq ", "≠": r"\neq ", "·": r"\cdot ", "∩": r"\cap ", "∈": r"\in "}
    | {"\N{MULTIPLICATION SIGN}": r"\times ", "\N{UNION}": r"\cup ", "°": r"^\circ", "º": r"^\circ"}
)
_MONTHS = "Jan Feb Mar Apr May June? July? Aug Sept? Oct Nov Dec".replace(" ", "|")
_WHEN = re.compile(
    rf"\d{{4}}-\d\d-\d\d|0[bx][\dA-F]+|{_SEVERAL_UNITS}"
    rf"|(?:\d{{1,2}}\s+)?(?:{_MONTHS})[a-z]*\.?(?:\s+\d{{1,2}})?(?:,?\s+\d{{4}})?"
    r"|(\d{1,2})(:\d\d)?(?:\s|\\[,; ]|~)*([ap])\.?m\.?",
    re.IGNORECASE,
)
"""A day, a time of day, hours and minutes, or hexadecimal digits, whose numbers are no answer by themselves."""
_MEASURES = r"(?:[kcm]?m|[km]?g|m?L|ft|in|mi|miles?|lbs?|mol|[kM]?[JNWV]|s|sec|min|h|hr|hours?|days?|units?)"
_MEASURED = re.compile(
    rf"(-?(?:\d+\s+)?\d+/\d+)\s+(?!pi|sqrt)[a-z]{{2,}}"
    rf"|(-?[\d.,]*\d(?:e[+-]?\d+)?)(?:\s|\\[,; ]|~)+{_MEASURES}(?:\^\{{?-?\d\}}?)?"
    rf"(?:\s*/\s*{_MEASURES}(?:\^\{{?\d\}}?)?)?"
)
"""A number and, apart from it, its unit, which may have a power or be a rate."""
_VARIABLE = re.compile(r"(?<=[\d}\s])(ab|bc|[a-z])\s*\Z")
"""A last factor that the parser takes for a unit: `ab` and `bc`, and one letter behind others."""
_SYMBOL = re.compile(r"(?<![A-Za-z])(?!e)[A-Za-z](?![A-Za-z])")
"""A letter by itself, which is no number as `e` is."""
_OPEN = re.compile(r"[\w)}]\s*[+-]|\\(?:sin|cos|tan|cot|sec|csc|log|ln|exp)")
"""A sum or a function, of which a number is no more than a part."""
_RELATION = re.compile(r"[=<>,]|\\(?:[gln]e|approx)")
_PHRASE = re.compile(r"\\(?:text|mbox|mathrm|mathbf|mathit|textbf|textit|textrm)\{([^{}]*)\}(?:\^\{?\d\}?)?")
"""Words, and the power of a unit."""
_UNIT = re.compile(
    rf"[\s,]*(?:(?:square|cubic|sq|cu)[\s.]*)?(?:{_MEASURES}|[a-z]*met(?:er|re)s?|inch(?:es)?|feet|yards?|degrees|dollars|weeks?|months?|years?)[\s.]*"
)
_INDEX = re.compile(r"_\{\s*\\(?:text|mathrm|mbox)\{([A-Za-z]+)\}\s*\}")
"""Words below a letter."""
_BOLD = re.compile(r"\\(?:mathbf|mathit)\{([A-Za-z])\}")
"""Names of vectors, which the parser would leave out as units."""
_CURRENT = re.compile(r"(?<![A-Za-z\\])[Ii](?=\s*_)")
"""A letter with an index, which the parser takes for the imaginary unit."""
_TRANSPOSED = re.compile(r"\^\s*(?:T(?![A-Za-z])|\\top(?![a-z])|\{\s*(?:T|\\top|\\(?:mathrm|text)\{T\})\s*\})")
"""A power that the parser drops."""
_CAPITAL = re.compile(r"\\(?:math[a-z]+|text[a-z]*|mbox|begin|end)\{[^{}]*\}|\\[A-Za-z]+|([A-Z])(?!\s*_)")
"""A letter that the parser takes for the small one, beside which it is another."""
_TEMPERATURE = re.compile(r"\^\{?\\circ\}?\s*(?:\\(?:text|mathrm)\{\s*[CF]\s*\}|[CF]\b)")
_CURRENCY = "$\N{CENT SIGN}\N{EURO SIGN}\N{POUND SIGN}\N{YEN SIGN}\N{INDIAN RUPEE SIGN}"
_BASE = re.compile(r"[\dA-F]+_\{?(\d+)\}?")
"""A number with the base that it is written in, which the parser leaves out."""
_CLOCK = re.compile(r"\d{1,2}:\d\d")
"""A time of day, or a ratio in lowest terms: either is compared as text with others of its kind."""
_MORE_THAN = r"\b(?:more|fewer|greater|larger|less|smaller) than"
_DENIED = re.compile(rf"(?:\b(?:can)?not|n't|{_MORE_THAN})(?:\s+be)?[\s{{}}]+[-$\\({{\[]*\d\S*\W*\Z")
"""What an answer is said not to be."""
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALED = re.compile(
    r"(?<![\d.,])(\d[\d,]*(?:\.\d+)?)(?:\s|~|-|\\[,;: ])*"
    r"(?:\\(?:text|mathrm|mbox)\{\s*(NAMES)\b([^{}]*)\}|(NAMES)\b)".replace("NAMES", "|".join(_SCALES))
)
"""A number of hundreds, thousands and so on, with these in words."""
_CLOSE = 1e-3
"""What two numbers may differ by that are one, of the larger: six decimals of 0.001 have no more digits."""
_ROUNDED = 1e-12
"""What a number with a decimal point may differ by from itself, computed."""
_FEW_WORDS = 5
"""Words of a solution that may be an answer of words alone."""
_COMMAND = re.compile(r"\\(?:text|mathrm|mbox|textbf|operatorname|begin|end)\*?\{[^{}]*\}|\\[A-Za-z]+")
_WORD = re.compile(r"[^\W\d_]{2,}|\bI(?= [a-z]{2})|(?<=[A-Za-z]['\u2019])[a-z](?![a-z])")
_SIDE = re.compile(r"[A-Z]{2,3}")
"""Ends of a line, or corners."""
_PLAIN_WORDS = {"or", "and", "sqrt", "pi", "sin", "cos", "tan", "log", "ln", "exp"}
_PLAIN = re.compile(r"[\d\s.,%*/+()^-]+")
_SPACED = re.compile(r"(?<![\d.,])-?[1-9]\d{0,2}(?:(?:[ \u00a0\u202f~]|\\[,;:! ])\d{3})+(?![\d])")
"""Digits of one number, set apart by spaces."""
_MIXED = re.compile(r"(?<![\d.])(\d+)\s+(\d+)/(\d+)")
_POWER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([+-]?\d+)(?!\w)")
_PI = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])")
_DECIMAL_COMMA = re.compile(r"-?\d+,(?:\d{1,2}|\d{4,})")
"""May be two numbers as well."""
_STATED = re.compile(r"final answer is[^\n]*?I hope", re.IGNORECASE)
"""How answers end that are written as in Minerva's prompt (arXiv 2206.14858)."""
_JOINED = re.compile(
    r"(?:[\s,;$]|\b[A-Za-z](?:_\{?\d\}?)?\s*=|\\[()\[\]]|\\q?quad|\band\b|\bor\b|\\text\{[^{}]*\b(?:and|or)\b[^{}]*\})*"
)
_QUANTITY = re.compile(r"([-+]?\$?[\d.,]*\d)\s+([A-Za-z]{2,})\.?")
_SAID = re.compile(r"\\text\{([^{}\d]*\d[\d.,]*[^{}\d]*)\}")
"""Words with one number."""
_TEXT = re.compile(
    r"(?i:yes|no|true|none)|\(?[A-Za-z][a-z]{3,}(?:[ '-][A-Za-z]+)*\)?\.?|[A-Za-z]+(?: [A-Za-z]+)+\.?"
)
_AROUND = re.compile(r"\\(?:angle|triangle|overline|vec|text|textbf|mathrm)(?![a-z])|[{}\s]")
_LETTERS = re.compile(r"[A-Z]{2,}")
"""Choices, or a name such as SAS, whose letters have an order; a product where the other answer is none."""


@lru_cache(maxsize=32)
def _parse(text: str, latex: bool = False, units: bool = True) -> list[Any]:
    r"""Parse a text; kept for a moment, as a solution judges many completions and each has a vote besides.

    Args:
        text: It.
        latex: Whether it is nothing but LaTeX, of which no number is taken where the whole is not understood.
        units: Leave out units: all from the first ``\text`` on, where the answer ends with a brace.
    """
    try:
        from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse
    except ImportError as error:
        raise ConfigError(f"the reward 'math_verify' needs a package: {install_command('math')}") from error
    # It warns at every call that its timeout is off.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    config = LatexExtractionConfig()
    if not units:
        config = replace(config, normalization_config=replace(config.normalization_config, units=False))
    parsed: list[Any] = parse(
        text,
        [config] if latex else [config, ExprExtractionConfig()],
        parsing_timeout=None,
        raise_on_error=True,
    )
    return [_complex(each) for each in parsed]


def _complex(parsed: Any) -> Any:
    """What was parsed, with the imaginary unit for an `i` that is its only symbol: the parser makes it a name.

    A derivative of what has a name alone is a name too: computed it would be 0, as any other.
    """
    if hasattr(parsed, "replace") and not isinstance(parsed, str):
        derivative, symbol = resolve_name("sympy:Derivative"), resolve_name("sympy:Symbol")
        parsed = parsed.replace(
            lambda each: isinstance(each, derivative) and each.expr.is_Symbol and each.expr not in each.variables,
            lambda each: symbol(str(each)),
        )
    symbols: set[Any] = getattr(parsed, "free_symbols", set())
    if {str(each) for each in symbols} != {"i"}:
        return parsed
    with suppress(TypeError, ValueError):  # an interval has no such end
        return parsed.subs(dict.fromkeys(symbols, resolve_name("sympy:I")))
    return parsed


def _read(text: str) -> list[Any]:
    """What the parser makes of the answer in a text; empty for none.

    It is in the last box, behind the mark of GSM8K, all there is, or what prose says to be the answer.
    """
    text = _NEGATIVE.sub("-", _SCALED.sub(_written_out, text))
    if found := boxes(text):
        hoped = _STATED.search(text, found[-1][0])
        return _parse(hoped[0]) if hoped else _boxed(text, found)
    mark = next(reversed(list(MARKED.finditer(text))), None)
    if mark is not None:
        return _read(text[mark.end() :].strip().partition("\n")[0])
    if (last := _LAST_MARK.search(text)) is not None:
        return _read(last[1].replace(MARK, ""))
    said = next((each[1] for each in reversed(list(_CONCLUDED.finditer(text)))), "")
    if formula := _formula(text) or _formula(said):
        return _alone(formula)
    if _is_bare(text):
        return _alone(text)
    if _DENIED.search(text):
        return []
    option = _OPTION.match(said)
    concluded = _alone(option[0] if option else said) if option or _is_value(said) else []
    if concluded and not option and _has_digits(said):
        return concluded
    last = _LAST.match(text.rstrip().rpartition("\n")[2])
    if last and (formula := _formula(last[1])):
        return [*concluded, *_alone(formula)]
    if last and _has_digits(last[1]) and _is_value(last[1]) and not _COUNTED.fullmatch(last[1]):
        found = _alone(last[1])
        if any(not isinstance(each, str) for each in found):
            return [*concluded, *found]
    if not _DELIMITERS.search(text) and (parted := _PARTED.findall(text)):
        text = _PARTED.sub(" ", text)
        if not _has_digits(text):
            return _alone(parted[-1])
    # Words may be no answer: "I am sure that the answer is right."
    return [*concluded, *_parse(_NO_LATIN.sub(lambda words: f" {words[0]} ", text))]


def _formula(text: str) -> str:
    """What stands between the signs of a formula, which a text is; "" for another text."""
    whole = _WHOLE.fullmatch(text.strip().rstrip("."))
    return "" if whole is None else next(part for part in whole.groups() if part is not None)


def _written_out(number: re.Match[str]) -> str:
    """A number such as 2.5 million, in digits."""
    value = Decimal(number[1].replace(",", "")).scaleb(_SCALES[number[2] or number[4]])
    return f"{value:f}" + (rf"\text{{{number[3]}}}" if number[3] else "")


def _boxed(text: str, found: Sequence[tuple[int, int, str | None]]) -> list[Any]:
    """Parse the last box, with those before it that are joined to it: several boxes may hold one answer each."""
    joined = [found[-1][2]]
    for (_, end, inside), (start, _, _) in reversed(list(pairwise(found))):
        if not _JOINED.fullmatch(text, end, start):
            break
        joined.insert(0, inside)
    parts = list(dict.fromkeys(part for part in joined if part is not None))
    return [] if joined[-1] is None else _alone(", ".join(parts))


def _is_bare(text: str) -> bool:
    """Whether a text is an answer that stands there by itself, and no prose with an answer in it."""
    if "\n" in text.strip() or _DELIMITERS.search(text) or re.search(r"[A-Za-z][\s*_\"]*:", text):
        return False
    return len(_words(text)) <= 1 or _WHEN.fullmatch(text.strip(" .")) is not None


def _is_value(said: str) -> bool:
    """Whether what prose says at its end is an answer by itself, without words beside a number."""
    counts = _has_digits(said) and bool(_words(said))
    return _is_bare(said) and (not counts or _WHEN.fullmatch(said.strip(" .")) is not None)


def _has_digits(text: str) -> bool:
    return any(each.isnumeric() for each in text)


def _words(text: str) -> list[str]:
    found = _WORD.findall(_COMMAND.sub(" ", text))
    return [each for each in found if each.lower() not in _PLAIN_WORDS and not _SIDE.fullmatch(each)]


def _alone(answer: str) -> list[Any]:
    """Parse an answer that stands there by itself."""
    if _DENIED.search(answer):
        return []
    answer = _without_dress(answer)
    said = _FONT.sub(r"\1", answer)
    if (when := _WHEN.fullmatch(said.strip(" ."))) is not None:
        time_of_day = when[1] and f"{when[1]}{when[2] or ':00'} {when[3].lower()}m"
        words = " ".join(re.sub(r",|\band\b", " ", when[0].lower()).split())
        return _parse(rf"\boxed{{\text{{{time_of_day or words}}}}}", latex=True)
    if (number := _SAID.fullmatch(answer)) is not None and not _OPTION.match(said):
        return _read(number[1])
    if (measured := _MEASURED.fullmatch(answer)) is not None:
        answer = measured[1] or measured[2]
    if _OPTIONS.fullmatch(said):
        answer = "".join(sorted(set(re.findall("[A-J]", said))))
    elif (option := _OPTION.match(said)) is not None:
        answer = option[1] or option[2] or option[3]
    answer = _without_words(answer.rstrip("."))
    if not answer:
        return []
    answer = _FUNCTION.sub(r"\\\1", _LETTER.sub(r"\1 ", answer)).replace(r"\varnothing", r"\emptyset")
    answer = answer.replace(r"\lbrace", r"\{").replace(r"\rbrace", r"\}")
    answer = _ROOT.sub(lambda root: rf"\sqrt{{{root[1] or root[2] or root[3]}}}", answer)
    answer = _DEGREES.sub(r"\1\2{\\frac{\3 \\pi}{180}}", answer)
    answer = _NATURAL.sub(r"\\ln", answer).replace(r"\lg ", r"\log_{10} ")
    if _SETS.fullmatch(answer):
        answer = f"\\{'cup' if 'u' in answer else 'cap'} ".join(sorted(re.findall(r"[A-Z]", answer)))
    answer = _SPACED.sub(lambda number: re.sub(r"\\[,;:! ]|\s|~", "", number[0]), answer).replace("~", " ")
    answer = _PI.sub(r"\\pi", _MIXED.sub(r"\1\\frac{\2}{\3}", _POWER.sub(r"\1\\cdot 10^{\2}", answer)))
    answer = _TRANSPOSED.sub("^{t}", _INDEX.sub(r"_{\1}", _BOLD.sub(r" \1", answer)))
    answer = _CURRENT.sub(r"\\iota ", answer)
    letters = set(_COMMAND.sub(" ", answer))
    answer = _CAPITAL.sub(
        lambda found: f"{found[0]}_{{up}}" if found[1] and found[1].lower() in letters else found[0], answer
    )
    if last := _VARIABLE.search(answer):
        value = answer[: last.start()]
        if len(last[1]) > 1 or _has_symbol(value) or _OPEN.search(_RELATION.split(value)[-1]):
            answer = f"{value}{{{last[1]}}}"
    if len(texts := _PHRASE.findall(answer)) > 1 and len(set(texts)) == 1:
        answer = _PHRASE.sub("", answer)  # of each of several values
    answer = _EITHER.sub(" or ", answer)
    if _EITHER_REGION.fullmatch(answer):
        answer = answer.replace(r"\cup", " or ")
    answer = _BUILT.sub(r"\1", answer)
    answer = _ARGUMENT.sub(r"\1{\2}", _POINT.sub("", _CALL.sub("", answer, count=1), count=1))
    if _PARTS.fullmatch(answer):
        parts = [int(each) for each in answer.split(":")]
        answer = ", ".join(rf"\frac{{{each}}}{{{sum(parts) or 1}}}" for each in parts).join("()")
    if _SEQUENCE.fullmatch(answer):
        answer = ", ".join(
            ", ".join(re.findall(r"\d+", each)).join("()") for each in answer.strip("()").split(")")
        )
    if (quantity := _QUANTITY.fullmatch(answer)) and quantity[2].lower() not in _PLAIN_WORDS:
        return _parse(answer)
    if _TEXT.fullmatch(answer):
        answer = rf"\text{{{answer.rstrip('.')}}}"
    found = _parse(rf"\boxed{{{answer}}}", latex=True, units=not _says_more(answer))
    if _DECIMAL_COMMA.fullmatch(answer):
        found = [*found, *_parse(answer)]
    if all(isinstance(each, str) for each in found) and _PLAIN.fullmatch(bare := answer.replace("\\%", "%")):
        found = [*_parse(bare), *found]  # what LaTeX does not have, as `2**10` and `50 %`
    return found


def _has_symbol(value: str) -> bool:
    """Whether a value has a letter for a number, and so may be multiplied by another one."""
    return _SYMBOL.search(_COMMAND.sub(" ", _RELATION.split(value)[-1])) is not None


def _says_more(answer: str) -> bool:
    r"""Whether words of an answer are more than a unit at its end, as in ``n\text{ even}``."""
    found = next(_PHRASE.finditer(answer), None)
    if found is None:
        return False
    unit = _UNIT.fullmatch(found[1])
    return found.end() < len(answer.rstrip()) or (not unit and _has_symbol(answer[: found.start()]))


def _without_dress(answer: str) -> str:
    """An answer in LaTeX, without emphasis of Markdown and signs of a currency around it."""
    answer = _DRESS.sub("", answer.strip()).rstrip("\\;.").strip("*`").strip().strip(_CURRENCY).strip()
    answer = answer if answer.isascii() else _UNICODE.sub(_in_latex, answer).translate(_SIGNS)
    return _REPEATING.sub(_as_fraction, _TEMPERATURE.sub(r"^\\circ", answer))


def _as_fraction(found: re.Match[str]) -> str:
    """A repeating decimal as the fraction that it is."""
    before, period = found[1] + found[2], found[3] or found[4]
    return rf"\frac{{{int(before + period) - int(before)}}}{{{(10 ** len(period) - 1) * 10 ** len(found[2])}}}"


def _in_latex(found: re.Match[str]) -> str:
    root, power, index, fraction = found[1] or found[2], *found.groups()[2:]
    if fraction:
        above, _, below = normalize("NFKC", fraction).partition("\N{FRACTION SLASH}")
        return rf"\frac{{{above}}}{{{below}}}"
    if root:
        return rf"\sqrt{{{root}}}"
    small = half_width(normalize("NFKC", power or index))
    return f"{'^' if power else '_'}{{{small}}}"


def _without_words(answer: str) -> str:
    """An answer without words beside it that are no units in Latin letters."""
    lead = _LEAD.match(answer)
    if lead is not None and (lead[1] or "").lower() not in _PLAIN_WORDS:
        answer = answer[lead.end() :].strip(_CURRENCY)
    if not any(each.isascii() and each.isalnum() for each in answer):
        return answer
    before, behind = _NO_LATIN.match(answer), _NO_LATIN.match(answer[::-1])
    return answer[before.end() if before else 0 : len(answer) - (behind.end() if behind else 0)].strip(" :=")


def parsed_answer(completion: Text) -> str | None:
    """The answer of a completion as the parser reads it, so that ``1/2`` and a half in LaTeX are one vote."""
    parsed = _read(answer_part(text_of(completion)))
    return str(parsed[0]) if parsed else None


@reward(compares(answer=parsed_answer, gold=gold_box, packages=("math-verify", "sympy"), version=15))
def math_verify(completions: Sequence[Text], solution: Sequence[Any], **_: Any) -> list[float | None]:
    """Compare answers as mathematics.

    Args:
        completions: Texts or conversations.
        solution: Column with the answer, in LaTeX or plain, bare, between dollars or boxed. Rows without one, or
            whose one cannot be read, get None.

    Raises:
        DataError: A solution is neither text nor number.
    """
    return compared(completions, solution, "math_verify", _equal)


def _equal(given: Text, wanted: str) -> float | None:
    gold = _gold(wanted)
    if not gold:
        return None
    if same_text(given, wanted):  # be it nothing that is understood, as a congruence
        return 1.0
    from math_verify import verify

    answer = _read(answer_part(text_of(given)))
    if not answer:
        return 0.0
    one, other = (_AROUND.sub("", str(each[-1])) for each in (gold, answer))
    if one[-1:].isdigit() != other[-1:].isdigit() and _CLOCK.match(one) and _CLOCK.match(other):
        return float(one.rstrip("apm") == other.rstrip("apm"))  # one of two times says in which half of the day
    if ("ln" in one) != ("ln" in other):  # so a bare log beside it is natural
        gold, answer = ([*_alone(_LOG.sub(r"\\ln ", str(each[-1]))), *each] for each in (gold, answer))
    if (differ := _differ(gold, answer)) is not None:
        return float(not differ)
    if _LETTERS.fullmatch(one) and _LETTERS.fullmatch(other):
        return float(one == other)
    if plain(str(gold[-1])) == plain(str(answer[-1])):
        return 1.0
    gold, answer = _regions(gold, answer)
    try:
        return float(verify(gold, answer, timeout_seconds=None, raise_on_error=True))
    except (ArithmeticError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError):
        # What has no value, as 12:00; the texts may still be the same.
        return float(verify(gold, answer, timeout_seconds=None))


def _differ(gold: Sequence[Any], answer: Sequence[Any]) -> bool | None:
    """Whether two answers differ, where math-verify does not see it; None elsewhere.

    It passes over bases and digits behind six decimals, and takes 1.5 * 10^4 and 15000 for different.
    """
    texts = [str(each[-1]) for each in (gold, answer)]
    bases = [found[1] for text in texts if (found := _BASE.fullmatch(text.strip()))]
    if len(bases) > 1 and bases[0] != bases[1]:
        return True
    if _CLOCK.fullmatch(texts[0]) and ":" in texts[1] and texts[0] != texts[1]:
        return True
    one, other = gold[0], answer[0]
    if any("%" in text for text in texts) or not (getattr(one, "is_number", 0) and getattr(other, "is_number", 0)):
        return None
    from sympy import Float

    try:
        values = [each.evalf() for each in (one, other)]
        apart, most = abs(values[0] - values[1]), max(map(abs, values))
        if apart > _CLOSE * most:
            return True
        is_decimal = one.has(Float) or other.has(Float)
        return False if is_decimal and apart <= _ROUNDED * most else None
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        return None


def _regions(*answers: list[Any]) -> list[list[Any]]:
    """Answers with the sets that inequalities of one symbol describe in their place, unless of different symbols.

    The values of several symbols are the point that they are in, beside another point: of x and y, not of y and x.
    Several are all meant where all can hold, and else any of them, as x < 1 or x > 2.
    """
    from sympy import Abs, And, Eq, FiniteSet, Function, Intersection, Interval, Pow, Symbol, Tuple, Union
    from sympy.core.relational import Relational

    def is_simple(part: Any) -> bool:  # enough to be solved at once
        if not isinstance(part, Relational | And) or isinstance(part, Eq):
            return False
        powers = (each for each in part.atoms(Pow) if not each.base.is_number)
        known = all(isinstance(each, Abs) for each in part.atoms(Function))
        return known and all(each.exp in range(-4, 5) for each in powers)

    def region(parsed: Any) -> Any:
        parts = parsed.args if isinstance(parsed, FiniteSet | And) else (parsed,)
        if not parts or not all(map(is_simple, parts)):
            return parsed
        with suppress(AttributeError, NotImplementedError, TypeError, ValueError):
            sets = [each.as_set() for each in parts]
            return Union(*sets) if Intersection(*sets).is_empty else Intersection(*sets)
        return parsed

    def point(parsed: Any, other: Any) -> Any:
        place = other.rhs if isinstance(other, Eq) else other
        parts = parsed.args if isinstance(parsed, FiniteSet) and isinstance(place, Tuple | Interval) else ()
        values = {
            str(each.lhs): each.rhs for each in parts if isinstance(each, Eq) and isinstance(each.lhs, Symbol)
        }
        return Tuple(*map(values.get, sorted(values))) if len(values) == len(parts) > 1 else parsed

    one, other = (each[0] for each in answers)
    answers = ([point(one, other), *answers[0][1:]], [point(other, one), *answers[1][1:]])
    names = [getattr(each[0], "free_symbols", None) or None for each in answers]
    if all(names) and names[0] != names[1]:
        return list(answers)
    return [[region(each[0]), *each] for each in answers]


def _gold(wanted: str) -> list[Any]:
    return _read(wanted) or (_alone(wanted) if len(wanted.split()) <= _FEW_WORDS else [])
