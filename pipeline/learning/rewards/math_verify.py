r"""Reward 1 for an answer that equals the solution: the same text, or mathematics that is parsed completely.

Two bare answers are equal (`same`) if one of these holds:

1. They are one text, once both are written alike (`written_alike`): spaces, ``\left``, ``\dfrac``, ``$``, signs of
   Unicode, fonts, thousands separators, currencies.
2. They have the same parts, each equal by this same rule: points and intervals in their order, sets and lists in
   any. Or they are the same time of day, letter of a choice, or value behind a name and ``=``.
3. Both are one expression, equation or region (intervals and inequalities), *each is read as a whole*, and
   `math-verify` finds them equal; numbers that differ by more than a thousandth never are, nor are expressions of
   different names, or whose values for some numbers are as different. What is too large is compared as text.

The parser of math-verify leaves out, without a word, much that it does not know. It is given nothing but text of
which each piece is a number, a name, or something that it is known to keep (`_PIECE`), with names that it cannot
take for a unit or a constant; and all names must be in what comes back. Other text is compared as text alone.

One of two answers may leave out: the unit or words behind a number, degrees, the sign of percent (50% is 50 and
0.5), a name and ``=``, the base of digits, the half of the day.

Simplification may run for ever on hostile input. The package's own timeouts are switched off: they need
`signal.alarm`, and the processes that grade have a deadline already.
"""

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any
from unicodedata import normalize

from pipeline.errors import ConfigError, install_command
from pipeline.learning.rewards.answers import answer_part, bare_answer, compared, compares, gold_box, half_width
from pipeline.learning.rewards.traits import Text, reward, text_of

# -- writing -----------------------------------------------------------------------------------------------------
# Rewrites answers so that equal meanings have equal text.

_COMMANDS = r"\infty \le \ge \ne \cup \cap \in \pi \theta * * / ^{\circ} ^{\circ} \pm \approx"
_SIGNS = str.maketrans(
    dict(zip("∞≤≥≠∪∩∈πθ·×÷°º±≈", (f"{each} " for each in _COMMANDS.split()), strict=True))  # noqa: RUF001
    | dict.fromkeys("€£¥₹¢$`\u00a0\u202f", " ")
)
_UNICODE = re.compile(r"√(?:\(([^()]*)\)|(\d+|[A-Za-zπ]))|([⁻⁺⁰¹²³⁴-⁹]+)|([₀-₉]+)|([¼-¾⅐-⅞])")
"""Matches roots, powers, indices and fractions in Unicode."""
_ALIKE = r"""
    \dfrac \frac  \tfrac \frac  \cfrac \frac  \times *  \cdot *  \div /  \lvert |  \rvert |  \vert |  \vee \lor
    \leq \le  \leqslant \le  <= \le  \lt <  \geq \ge  \geqslant \ge  >= \ge  \gt >  \neq \ne  != \ne  \top T
    \langle (  \rangle )  \lbrace \{  \rbrace \}  \varnothing \emptyset  \overrightarrow \vec  \lg \log_{10}
    \degree ^{\circ}
"""
_FUNCTION = "sqrt|pi|arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|sinh|cosh|tanh|log|ln|exp|infty"
_DOUBLED = "[dt]?frac|sqrt|left|right|text|mathrm|pi|infty|cdot|times|leq?|geq?|cup|pm|circ"
"""Commands in reference solutions that were escaped twice."""
_MEASURE = "(?:[kcm]?m|[km]?g|m?L|ft|in|mi|lbs?|mol|rad|[kMG]?(?:[JNW]|e?V|Pa|Hz)|s|sec|min|hr?|days?|units?|mph)"
_LONG = 2000
"""Characters beyond which an answer is compared as plain text: patterns take quadratic time."""


def _number(found: re.Match[str]) -> str:
    """Remove separators from digits; convert a repeating decimal to a fraction."""
    if not found.re.groups:
        return re.sub("[ ,]", "", found[0])
    before, period = found[1] + found[2], found[3]
    return rf"\frac{{{int(before + period) - int(before)}}}{{{(10 ** len(period) - 1) * 10 ** len(found[2])}}}"


_REWRITES = [
    (re.compile(pattern), written)
    for pattern, written in (
        # spacing, fonts and words
        (rf"(?<!\\)\\\\(?=(?:{_DOUBLED})(?![A-Za-z]))", r"\\"),
        (r"\\!\s*|\\\$|\*\*|\\(?:text)?color\{\w+\}", ""),
        (r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])\.?|\\(?:displaystyle|q?quad|bf|rm)(?![A-Za-z])", " "),
        (r"(?<!\\)\\[()\[\],;:> ]|~|\s+", " "),
        (r"\\mathbf\s*\{\s*(-?\d[\d.,]*)\s*\}", r"\1"),
        (r"(\\(?:text|mathrm)\s*\{[A-Za-z/ ]+)\^\s*\{?(-?\d)\}?\s*\}", r"\1}^{\2}"),
        (r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|it)|mbox|operatorname)\s*\{\s*([^{}]*?)\s*\}", r"\\text{\1}"),
        (r"\\text\{(or|and|[ei]|[^{}]*\d[^{}]*)\}|(?<![\d} ])\\text\{([A-Za-z])\}", r" \1\2 "),
        (rf"(?<![A-Za-z\\])(?:\\text\{{)?({_FUNCTION})(?![A-Za-z])\}}?", r"\\\1 "),
        (r"\s*(?:, *)?(?<![A-Za-z\\])or(?![A-Za-z])\s*", r" \\lor "),
        (r"\s*(?:, *)?(?<![A-Za-z\\])and(?![A-Za-z])\s*", ", "),
        (r"\s*(?:\\%|(?:\\text\{)?\b(?:percent(?:age)?|pct)\b\}?)", "%"),
        (r"\\mathbb\s*([A-Z])", r"\\mathbb{\1}"),
        (r"\\log_\s*(?:e(?![a-z])|\{e\})", r"\\ln "),
        (r"(\\text\{[A-Za-z]+)\}\s*/\s*\\text\{", r"\1/"),
        (r"[(\[]\s*\\begin\{array\}\s*\{[^{}]*\}(.*?)\\end\{array\}\s*[)\]]", r"\\begin{pmatrix}\1\\end{pmatrix}"),
        # numbers
        (r"\{,\}", ","),
        (r"(?<=\d) ?x ?(?=10\^)", "*"),
        (r"(?<![\d.,(\[{])[1-9]\d{0,2}(?:[ ,]\d{3})+(?![\d,])(?!\s*[)\]}])", _number),
        (r"(\d+)\.(\d*)\\(?:overline|bar|dot)\s*\{?(\d{1,50})\}?", _number),
        (r"(\d)[eE]([+-]?\d+)(?!\w)", r"\1*10^{\2}"),
        (r"(?<![\d.])(\d+) (\d+)/(\d+)(?!\d)", r"\1\\frac{\2}{\3}"),
        # braces
        (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\^\s*\(([^()]*)\)", r"^{\1}"),
        (r"\\frac\s*([A-Za-z\d]|\\pi(?![a-z]))", r"\\frac{\1}"),
        (r"(\\frac\s*\{[^{}]*\})\s*([A-Za-z\d]|\\pi(?![a-z]))", r"\1{\2}"),
        (r"\\sqrt\s*(\[\d+\])?\s*([A-Za-z\d]|\\pi(?![a-z])|\\frac\s*(?:\{[^{}]*\}\s*){2})", r"\\sqrt\1{\2}"),
        (r"([_^])\s*(-?\d+|[A-Za-z]|\\[a-z]+)", r"\1{\2}"),
        (r"_\{\s*\\text\{(\w+)\}\s*\}", r"_{\1}"),
        (r"\\\{\s*\\\}", r"\\emptyset "),
        (r"\\\{\s*[A-Za-z]\s*(?:\\mid(?![a-z])|[|:])([^{}]*(?:[<>]|\\[gln]e)[^{}]*)\\\}", r"\1"),
        # what leads to an answer and comes behind it
        (r"^(?:\s|[=-]>|\\(?:approx|therefore)\b|[=∴⇒→,]|\\text\{[^{}\d]*(?:\bis|:)\})+", ""),
        (r"^(?i:so|thus|hence|therefore|about|approximately|(?:i )?get|it'?s)\b[\s,:=]*", ""),
        (r"(?<=[\d}])\s*\\approx.*$", ""),
        (r"\\approx", "="),
        (r"^(?:minus|negative)\s+(?=\d)", "-"),
        (r"^(?:(?![不非没未于过少多第])[,\u3400-\u9fff])+:?\s*(?=[-A-Za-z\d\\(])", ""),
        (r"(?<=\d)\s*[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+\.?$", ""),
        (r"\^\{\\circ\}\s*[CF]$", r"^{\\circ}"),
        (
            rf"(?<=[\d}})])\s+({_MEASURE} ?/ ?{_MEASURE}|[ckm]m|kg|ft|lbs?|mph|Hz|[kMG]?eV|k?Pa|mol)"
            r"(\^\{-?\d\})?$",
            r"\\text{\1}\2",
        ),
        (r"(?<=[\d}])\s+([a-z]{3,}(?: [a-z]+)*)$", r"\\text{\1}"),
    )
]


@lru_cache(maxsize=256)
def written_alike(answer: str) -> str:
    """Normalise the notation of a bare answer, so that answers with the same meaning have the same text."""
    if len(answer) > _LONG:
        return answer
    ways = _ALIKE.split()
    alike = {each: f"{written} " for each, written in zip(ways[::2], ways[1::2], strict=True)}
    text = re.sub(r"(?<=\d) ?([ckm]?m)(?=[²³])", r"\\text{\1}", half_width(answer.strip(" *")))
    text = _UNICODE.sub(_in_latex, text).translate(_SIGNS)
    text = re.sub(r"\\[A-Za-z]+|[<>!]=", lambda found: alike.get(found[0], found[0]), text)
    for pattern, written in _REWRITES:
        text = pattern.sub(written, text.strip())
    return re.sub(r"\s+", " ", text).strip().rstrip("\\.,;: ")


def _in_latex(found: re.Match[str]) -> str:
    root, power, index, fraction = found[1] or found[2], *found.groups()[2:]
    if fraction:
        return " " + normalize("NFKC", fraction).replace("\N{FRACTION SLASH}", "/")
    if root:
        return rf"\sqrt{{{root}}}"
    return f"{'^' if power else '_'}{{{half_width(normalize('NFKC', power or index))}}}"


# -- rules -------------------------------------------------------------------------------------------------------
# Each rule returns whether two answers are equal, or None if it does not apply; then the next rule decides.

_CLOCK = re.compile(r"(\d{1,2})(?::(\d\d))? ?(?:\\text\{ ?)?(?:([ap])\.? ?m\.? ?\}?)?", re.IGNORECASE)
_OPTION = re.compile(r"\(([A-J])\)((?:[ .:].*)?)|([A-J])(?:[).:](.*))?")
_REGION = re.compile(r"[<>]|\\(?:le|ge|ne|in|cup|cap|setminus|mathbb\{[NZQRC]|emptyset)(?![a-z])")
_BRACKET = re.compile(r"\\?([(\[{])|\\?([)\]}])|([,;]|\\lor(?![a-z]))")
_AROUND = re.compile(r"(\\\{|[(\[{])(.*?)(\\\}|[)\]}])")
_DEPTHS = set(range(20))
"""Allowed depths of nested brackets."""
_NAMED = re.compile(
    r"((?:[A-Za-z\\{}|:' ]|_\{\w+\})+(?:[(\[][^=]*?[)\]])?|\([A-Za-z\\, ]+\)"
    r"|(?:\\[a-z]+|[^A-Za-z\\=<>])+(?==(?:\\[a-z]+|[^A-Za-z\\])*$))"
    r" ?=([^<>]*[^<>= ])"
)
"""Matches a value after its name, which may be a function or several values, or after the expression it was
computed from."""
_BASE = re.compile(r"([\dA-F]+)_\{\d+\}")
_UNIT = re.compile(r"(.*[\d)}a-z]) ?(?:\\text\{([^{}\d]*)\}(\^\{-?\d\})?|\^\{\\circ\}|(%))")
_KNOWN = rf"{_MEASURE}(?:/{_MEASURE})?(?:\^\{{-?\d\}})?"
_NO_UNIT = re.compile(r"\b(?:more|less|least|most|not|even|odd|[ap]\.?m)\b|\\circ")
_LETTER = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
_WORD = re.compile(r"[A-Z]{2,}|[A-Za-z]{4,}")
"""Matches letters that are one name, or whose order counts."""


def same(one: str, other: str) -> bool:
    """Return whether two bare answers are equal; both come from `written_alike`."""
    if max(len(one), len(other)) > _LONG:
        return bool(_same_text(one, other))
    rules = (_same_text, _same_time, _same_letter, _same_region, _same_named, _same_parts, _same_value)
    return next(verdict for rule in rules if (verdict := rule(one, other)) is not None)


def _same_text(one: str, other: str) -> bool | None:
    return (True if _key(one) == _key(other) else None) if one and other else False


def _key(text: str) -> str:
    """Remove spaces and text commands; write words in small letters and a decimal comma as a point."""
    said = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text).strip()
    if re.fullmatch(r"(?i:yes|no)|[A-Z]?[a-z]{3,}|[A-Za-z']+(?: [A-Za-z']+)+", said):
        said = said.lower()
    said = re.sub(r"^(-?\d+),(\d+)$", r"\1.\2", said)  # a decimal comma; lists are compared by their parts
    return re.sub(r"(?<!\d) | (?!\d)", "", said)


def _same_time(*answers: str) -> bool | None:
    times = [found for each in answers if (found := _CLOCK.fullmatch(each)) and (found[2] or found[3])]
    if len(times) < 2:
        return None
    halves = {each[3].lower() for each in times if each[3]}
    return len({(each[1], each[2] or "00") for each in times}) == 1 and len(halves) < 2


def _same_letter(*answers: str) -> bool | None:
    """Compare letters of choices; one of the two may be followed by the text of its choice."""
    said = (re.sub(r"\\text\{([^{}]*)\}", r"\1", each).strip() for each in answers)
    found = [(each[1] or each[3], each[2] or each[4] or "") for text in said if (each := _OPTION.fullmatch(text))]
    if len(found) < 2 or all(behind for _, behind in found):
        return None
    several = any(re.search(r"\\(?:lor|cup|cap)|\([A-J]\)", behind) for _, behind in found)
    return found[0][0] == found[1][0] and not several


def _same_region(one: str, other: str) -> bool | None:
    """Compare intervals and inequalities; one of them may leave out the name."""
    if not (_REGION.search(one) or _REGION.search(other)):
        return None
    (name, region), (others_name, others_region) = _region(one), _region(other)
    if region is None or others_region is None:
        return None
    return name in ("", others_name or name) and _verified(region, others_region)


def _region(text: str) -> tuple[str, Any]:
    """Parse a region: return the name, "" if there is none, and the set, None if it cannot be parsed."""
    from sympy import Abs, And, Function, Intersection, Pow, Set, Union
    from sympy.core.relational import Relational

    def is_simple(part: Any) -> bool:  # enough to be solved at once
        powers = (each for each in part.atoms(Pow) if not each.base.is_number)
        known = all(isinstance(each, Abs) for each in part.atoms(Function))
        return isinstance(part, Relational | And) and known and all(each.exp in range(-4, 5) for each in powers)

    if (inside := re.fullmatch(r"([A-Za-z]) ?(?:\\in(?![a-z])|=) ?(.*)", text)) is not None:
        return _symbol(inside[1]), _region(inside[2])[1]
    if not re.search(r"[<>]|\\(?:le|ge|ne)(?![a-z])", text):
        found = _read(text)
        return "", found if isinstance(found, Set) else None
    parts = [_read(each.strip()) for each in re.split(r"[,;]|\\(?:lor|cup)(?![a-z])", text)]
    names = {str(name) for each in parts if each is not None for name in each.free_symbols}
    if len(names) == 1 and all(each is not None and is_simple(each) for each in parts):
        with suppress(AttributeError, NotImplementedError, TypeError, ValueError):
            sets = [each.as_set() for each in parts]
            either = re.search(r"\\(?:lor|cup)(?![a-z])", text) or Intersection(*sets).is_empty
            return names.pop(), Union(*sets) if either else Intersection(*sets)
    return "", None


def _same_named(*answers: str) -> bool | None:
    """Compare values with names before them; the names must be equal, or missing in one of the answers."""
    found = [_NAMED.fullmatch(each) if len(_parts(each)[1]) == 1 else None for each in answers]
    names = {_key(each[1]) for each in found if each and re.search("[A-Za-z]", each[1])}
    values = [
        each[2].rpartition("=")[2].strip() if each else text for each, text in zip(found, answers, strict=True)
    ]
    if not any(found) or len(names) > 1 or any("=" in each and len(_parts(each)[1]) == 1 for each in values):
        return None
    return same(*values)


def _same_parts(one: str, other: str) -> bool | None:
    (around, parts), (others_around, others) = _parts(one), _parts(other)
    if len(parts) == len(others) == 1:
        return None if (parts[0], others[0]) == (one, other) else same(parts[0], others[0])
    if len(parts) != len(others):
        return False
    if around not in ("", "{}") or others_around not in ("", "{}"):
        return {around, others_around} in ({around}, {"", "()"}) and all(map(same, parts, others))
    for part in parts:
        if (found := next((each for each in others if same(part, each)), None)) is None:
            return False
        others.remove(found)
    return True


def _parts(text: str) -> tuple[str, list[str]]:
    """Split a text into its brackets and the items in them; one item for a value, without needless brackets."""
    depth, start, parts, depths = 0, 0, [], {0}
    for found in _BRACKET.finditer(text):
        depth += bool(found[1]) - bool(found[2])
        depths.add(depth)
        if found[3] and depth == 0:
            parts.append(text[start : found.start()].strip())
            start = found.end()
    parts.append(text[start:].strip())
    if depth or not depths <= _DEPTHS:
        return "?", [text]
    if len(parts) == 1 and (enclosed := _AROUND.fullmatch(text)):
        around, within = _parts(enclosed[2].strip())
        if around != "?" and (len(within) > 1 or enclosed[1] != "["):
            brackets = enclosed[1][-1] + enclosed[3][-1]
            return (brackets, within) if len(within) > 1 and not around else ("", [enclosed[2].strip()])
    both = [[each.replace(r"\pm", sign) for sign in "+-"] if r"\pm" in each else [each] for each in parts]
    return "", [each for values in both for each in values]


def _same_value(one: str, other: str) -> bool:
    bases = [found for each in (one, other) if (found := _BASE.fullmatch(each))]
    if bases:
        return len(bases) == 1 and bases[0][1] in (one, other)
    (value, unit), (others_value, others_unit) = _unit(one), _unit(other)
    if (value, others_value) != (one, other):
        known = [re.fullmatch(_KNOWN, each) for each in (unit, others_unit)]
        if all(known) and unit != others_unit:
            return False
        if unit != others_unit and "%" in (unit, others_unit):
            percent, share = (value, others_value) if unit == "%" else (others_value, value)
            return same(percent, share) or same(rf"\frac{{{percent}}}{{100}}", share)
        return same(value, others_value)
    if _WORD.fullmatch(one) and _WORD.fullmatch(other):
        return False
    if (r"\ln" in one) != (r"\ln" in other):  # so a log without a base is natural
        one, other = (re.sub(r"\\log(?![a-z_])", r"\\ln", each) for each in (one, other))
    first, second = _read(one), _read(other)
    return first is not None and second is not None and _verified(first, second)


def _unit(text: str) -> tuple[str, str]:
    """Split a value from its unit; after a value with letters, only known units count."""
    found = _UNIT.fullmatch(text)
    if found is None or _NO_UNIT.search(found[1] + " " + (found[2] or "")):
        return text, ""
    if found[2] is None and found[4] is None:  # degrees, which a function takes for a number
        return (text, "") if re.search(rf"\\(?:{_FUNCTION})", found[1].replace(r"\pi", "")) else (found[1], "")
    unit = found[4] or re.sub(r" |(?<=h)r\b|(?<=s)ec\b", "", found[2] + (found[3] or ""))
    if _LETTER.search(found[1]) and found[2] and not re.fullmatch(_KNOWN, unit):
        return text, ""
    return found[1].strip(), unit


# -- reading -----------------------------------------------------------------------------------------------------

_PIECE = re.compile(
    r"(?P<number>\d+(?:\.\d+)?|\.\d+)|(?P<constant>[ei](?![_'])|\\(?:pi|infty)(?![A-Za-z]))"
    r"|(?P<name>(?:\\(?:vec|hat|bar|overline|tilde|mathbf|mathcal|text)\{[A-Za-z]\}|\\(?:alpha|beta|gamma|delta"
    r"|epsilon|varepsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi|psi|omega|Gamma|Delta"
    r"|Theta|Lambda|Sigma|Phi|Psi|Omega|ell|hbar)(?![A-Za-z])|(?<![A-Za-z])d[a-z](?![A-Za-z])|[A-Za-z])"
    r"(?:_\{[\w, +\\-]+\})?'*(?:\(0\))?)"
    r"|(?P<kept>\\(?:frac|sqrt|binom|ln|log|exp|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|cup|cap"
    r"|setminus|emptyset|le|ge|ne|lfloor|rfloor|lceil|rceil)(?![A-Za-z])|\\mathbb\{[NZQRC]\}"
    r"|\\(?:begin|end)\{[pbv]?matrix\}|\\\\|\\[{}]|(?<=\\log)_|(?<=\\log )_|[-+*/^(){}\[\]|!<>=,&:])"
)
"""Tokens that the parser keeps. Names include their index, and may be a value at 0, such as f(0), which is no
product; of the other tokens only logarithms have an index, their base."""
_UNCLEAR = re.compile(
    r"/ (?:[\d.]+|x_\{\d+\}|\\pi) (?=x_|e|\(|\\(?!infty|le|ge|ne|cup|cap|rceil|rfloor)[a-z])"
    r"|\d \d|(?<![\d.])0(?:\d+ | x)| 0\d|: .*:"
)
"""Matches a divisor that may have a factor after it, numbers side by side, and digits that are no number."""
_LARGE = re.compile(
    r"\^ (?:\{ )?(?:- )?\d{5,}|\^ \{ \d+ \^ (?:\{ )?\d|\d{5,} !|\^ \{ [\d ]+\} (?:\) )?!|\\binom \{ \d{5,}"
)
"""Matches powers, factorials and binomials that are too large to compute."""
_LONGEST = 500
"""Largest number of characters for the parser, whose time grows faster than the text."""
_CLOSE = 1e-3
"""Largest relative difference between two equal numbers: six decimals of 0.001 have no more digits."""
_ROUNDED = 1e-14
"""Largest relative error of a number with a decimal point after computation."""


@lru_cache(maxsize=256)
def _read(text: str) -> Any:
    """Parse a whole text by the parser of math-verify; return None if any part is unknown."""
    try:
        from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
    except ImportError as error:
        raise ConfigError(f"the reward 'math_verify' needs a package: {install_command('math')}") from error
    from sympy import Basic, Integer, MatrixBase, Symbol

    if len(text) > _LONGEST:
        return None
    if re.search(r"\\(?:sin|cos|tan|cot|sec|csc)", text):
        text = re.sub(r"(\d+(?:\.\d+)?)\^\{\\circ\}", r"(\\frac{\1 \\pi}{180})", text)
    pieces, names = [""], set()
    place = 0
    while place < len(text):
        if text[place] == " ":
            place += 1
            continue
        if (piece := _PIECE.match(text, place)) is None:
            return None
        place, said = piece.end(), piece[0]
        if piece["name"]:
            said = _symbol(said)
            names.add(said)
        elif said == "i":
            said = "( I )"  # without brackets the power of i would be left out
        # A bracket or fraction after a number or a bracket is a factor, not part of a mixed number; \pi is no
        # function.
        if (pieces[-1] == ")" and said.startswith(("(", r"\frac"))) or (
            (pieces[-1][-1:].isdigit() or pieces[-1] == r"\pi") and said[0] == "("
        ):
            pieces.append(r"\cdot")
        pieces.append(said)
    written = " ".join(pieces).strip()
    if _UNCLEAR.search(written) or _LARGE.search(written):
        return None
    if re.fullmatch(r"(?:- )?\d+", written):
        return Integer(written.replace(" ", ""))
    config = ConversionConfig(lowercase_symbols=False)
    try:
        found = latex2sympy(written, is_real=True, normalization_config=None, conversion_config=config)
    except Exception:  # whatever its grammar and sympy raise
        return None
    whole = isinstance(found, Basic | MatrixBase) and {str(each) for each in found.atoms(Symbol)} == names
    return found if whole else None


def _symbol(name: str) -> str:
    """Encode a name so that the parser takes it for a symbol."""
    return "x_{" + "".join(f"{ord(each):03d}" for each in name.replace(" ", "")) + "}"


def _verified(one: Any, other: Any) -> bool:
    """Return whether math-verify finds two values equal, and their numeric values are close.

    math-verify alone treats 1.5 * 10^4 and 15000 as different, and values that only differ after six decimals as
    equal.
    """
    from math_verify import verify
    from sympy import Basic, Expr, Float, MatrixBase, MatrixExpr, nan, zoo
    from sympy.logic.boolalg import Boolean

    order = (Boolean, MatrixBase | MatrixExpr, Expr, Basic)
    kinds = {[isinstance(each, kind) for kind in order].index(True) for each in (one, other)}
    names = one.free_symbols
    if len(kinds) > 1 or names != other.free_symbols or any(each.has(nan, zoo) for each in (one, other)):
        return False
    if isinstance(one, Expr) and isinstance(other, Expr):  # names get some values
        point = {name: Float(f"0.{37 + 2 * place}") for place, name in enumerate(sorted(names, key=str))}
        with suppress(ArithmeticError, AttributeError, TypeError, ValueError):
            values = [each.subs(point).evalf() for each in (one, other)]
            if all(each.is_finite for each in values):
                apart, most = abs(values[0] - values[1]), max(map(abs, values))
                if apart > _CLOSE * most:
                    return False
                if not names and apart <= _ROUNDED * most and (one.has(Float) or other.has(Float)):
                    return True
            elif not names:
                return bool(values[0] == values[1])
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its timeout is off
    return bool(verify(one, other, timeout_seconds=None))


# -- reward ------------------------------------------------------------------------------------------------------

_BEFORE_NUMBER = re.compile(
    r"(?:\\text\{)?\([A-J]\)(?:\}| )*(?=[-\d\\])|\d*[A-Za-z](?: ?\+ ?\d*[A-Za-z])+ ?=(?=[^<>]*$)"
)
"""Matches the letter of a choice, or a sum of names, before the number, as in competitions: ``(E) 27``, ``m+n =
27``."""
_FEW_WORDS = 5
"""Largest number of words in a solution that consists of words."""


def _answer(text: str) -> str:
    return written_alike(bare_answer(text) or "")


def parsed_answer(completion: Text) -> str | None:
    """Return the answer of a completion as parsed, so that ``1/2`` and a half in LaTeX are one vote."""
    answer = _answer(answer_part(text_of(completion)))
    read = _read(_unit(answer)[0]) if answer else None
    return (_key(answer) or None) if read is None else str(read)


@reward(
    compares(
        answer=parsed_answer, gold=gold_box, packages=("math-verify", "latex2sympy2-extended", "sympy"), version=18
    )
)
def math_verify(completions: Sequence[Text], solution: Sequence[Any], **_: Any) -> list[float | None]:
    """Compare answers as mathematics.

    Args:
        completions: Texts or conversations.
        solution: Column with the answer, in LaTeX or plain, bare, between dollars or boxed. Rows without a
            solution, or with prose that states no answer, get None.

    Raises:
        DataError: A solution is neither text nor number.
    """
    return compared(completions, solution, "math_verify", _equal)


def _equal(given: Text, wanted: str) -> float | None:
    gold = written_alike(bare_answer(wanted, most_words=_FEW_WORDS) or "")
    answer = _answer(answer_part(text_of(given)))
    if (found := _BEFORE_NUMBER.match(answer)) and not _LETTER.search(gold):
        answer = answer[found.end() :].strip()
    return float(same(gold, answer)) if gold else None
