"""Data that others wrote: the one way in which JSON from outside becomes a type of ours.

A worker's message, a file that an algorithm of the user's own left, a journal, a file beside the store: any of
them may be cut off, altered, nested without end, or hold a text where a number belongs. What comes through here is
an instance of the type that was asked for, so nothing behind it needs to look again; all else is one error that
says what was found and where.
"""

import json
import logging
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from pipeline.errors import ConfigError, without_advice
from pipeline.files import json_text, open_plain, write_whole

SMALL = 64 << 20
"""Bytes that a file of settings, notes or figures has at most."""
_SHOWN = 60
_PLACE = re.compile(r" - at `\$([^`]*)`$")
_T = TypeVar("_T")


class ForeignDataError(ValueError):
    """Data from outside is not what it should be; the message says what was found, and where in it."""


def read_json(data: bytes | str, kind: type[_T], *, infinite: bool = False) -> _T:
    """Read JSON as a type.

    Numbers must be finite, as JSON has no others, unless said otherwise. Fields that the type does not know are
    left out, so that data of a later version can be read.

    Args:
        data: The JSON.
        kind: A type that msgspec knows: a dataclass, a union, containers and plain types. Ranges are written
            ``Annotated[int, msgspec.Meta(ge=0)]``.
        infinite: Take ``NaN`` and ``Infinity`` too, as configurations have them.

    Raises:
        ForeignDataError: The data is no JSON, or not of this type.
    """
    return converted(parse_json(data, infinite=infinite), kind)


def parse_json(data: bytes | str, *, infinite: bool = False) -> Any:
    """Read JSON as plain data; see `read_json`.

    Raises:
        ForeignDataError: It is none, or it is nested too deeply.
    """
    try:
        return _FAST.decode(data)
    except (ValueError, RecursionError):  # a fifth of the time, and stricter: what it refuses may still do
        pass
    try:
        text = data if isinstance(data, str) else data.decode(json.detect_encoding(data))
        return (_LENIENT if infinite else _STRICT).decode(text)
    except ForeignDataError:
        raise
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise ForeignDataError(f"this is no JSON ({_brief(error)})") from error


def converted(value: Any, kind: type[_T]) -> _T:
    """Turn plain data into a type.

    Raises:
        ForeignDataError: It is not of this type.
    """
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError, OverflowError) as error:
        raise ForeignDataError(_brief(error) + _wrong_value(value, str(error))) from error
    except UnicodeEncodeError as error:  # msgspec looks into texts as UTF-8, which has no half of a pair
        raise ForeignDataError("a text with half of a surrogate pair in it, where there may be none") from error


# -- files -----------------------------------------------------------------------------------------------------


def read_plain(path: Path, limit: int = SMALL, *, follow: bool = False) -> bytes:
    """Read a file that anyone may have put there.

    Args:
        path: The file, see `open_plain`.
        limit: Bytes that it may have.
        follow: Whether it may be a link to a file.

    Raises:
        ForeignDataError: It is larger.
        OSError: It is missing, no plain file, or cannot be read.
    """
    with open_plain(path, follow=follow) as file:
        if os.fstat(file.fileno()).st_size > limit:  # not EFBIG, which says that a disk takes no more
            raise ForeignDataError(f"it is larger than {limit:,} bytes")
        return file.read()


def read_json_file(
    path: Path, kind: type[_T], limit: int = SMALL, *, follow: bool = False, infinite: bool = False
) -> _T:
    """Read a file of JSON as a type; see `read_plain` and `read_json`.

    Raises:
        ForeignDataError: What it holds is no JSON, not of this type, or too large.
        OSError: It cannot be read.
    """
    return read_json(read_plain(path, limit, follow=follow), kind, infinite=infinite)


def read_model_json(path: Path, kind: type[_T], limit: int = SMALL) -> _T:
    """Read a file of JSON of a model, as transformers and peft do: in UTF-8 alone, `NaN` and `Infinity` allowed.

    Raises:
        ForeignDataError: They would not read it, or it is not of this type, or too large.
        OSError: It cannot be read.
    """
    data = read_plain(path, limit, follow=True)
    if json.detect_encoding(data) != "utf-8":
        raise ForeignDataError("it is not in plain UTF-8, as editors of Windows save: save it without a BOM")
    return read_json(data, kind, infinite=True)


# -- in words --------------------------------------------------------------------------------------------------


def _refuse_constant(name: str) -> NoReturn:
    raise ForeignDataError(f"this is no JSON ({name} is no number there)")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ForeignDataError(f"this is no JSON ({text[:_SHOWN]} is too large for a number)")
    return number


_FAST = msgspec.json.Decoder()
# `json.loads` would make one for every call.
_STRICT = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_LENIENT = json.JSONDecoder()


def _wrong_value(value: Any, problem: str) -> str:
    """Return the value where an error was found: msgspec tells the place, but for a range not the number."""
    if not (where := _PLACE.search(problem)):
        return ""
    for key, index in re.findall(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]", where[1]):
        if index == "..." or not isinstance(value, dict if key else list):
            return ""
        try:
            value = value[key or int(index)]
        except (KeyError, IndexError):
            return ""
    shown = repr(value) if isinstance(value, str | int | float) else ""
    return f", where there is {shown[:_SHOWN]}" if shown else ""


def _brief(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = without_advice(str(error))
    return text[:1].lower() + text[1:]


# -- YAML ------------------------------------------------------------------------------------------------------
# A few hundred bytes can stand for billions of values (anchors that repeat anchors), and readers take stack out of
# proportion to what they are given: both are bounded before anything is made of a file.


LARGEST_FILE = 1_000_000
"""Bytes of a YAML file."""
MOST_VALUES = 50_000
"""Values of a YAML file, those that aliases repeat counted each time."""
RESOLVED = 4
"""A configuration with all defaults, and the points of fronts written out, may have so many times of both."""
DEEPEST = 50
"""Tables and lists inside each other."""
_LONGEST_NUMBER = 3_500
"""Digits of a whole number; Python prints none with more than 4,300, which in base 16 are fewer."""
_WHOLE_NUMBER = re.compile(r"[-+]?(?:0x[0-9a-fA-F_]+|[0-9_:]+)")


def read_resolved(data: bytes) -> Any:
    """Read the configuration that a run has left.

    Raises:
        ConfigError: It is out of bounds; says which.
        yaml.YAMLError: It is no YAML.
        ValueError: It is no text, or a value in it is none that YAML has.
    """
    import yaml

    check_yaml(data, RESOLVED * MOST_VALUES)
    return yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - it is a safe one


def check_yaml(document: str | bytes, most: int = MOST_VALUES) -> None:
    """Refuse YAML that stands for too much without making it: an alias counts as all that its anchor has.

    Raises:
        ConfigError: Says which bound, without the name of a file.
        yaml.YAMLError: It is no YAML.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    open_: list[tuple[str | None, int]] = []
    sizes: dict[str, int] = {}
    count = 0
    for event in yaml.parse(document, Loader=loader):
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            if anchor not in sizes and anchor in [name for name, _ in open_]:
                raise ConfigError(f"what the anchor &{anchor} names holds itself")
            count += sizes.get(anchor or "", 1)
        elif isinstance(event, yaml.NodeEvent):
            count += 1
            text = event.value if isinstance(event, yaml.ScalarEvent) and event.implicit[0] else ""
            if len(text) > _LONGEST_NUMBER and _WHOLE_NUMBER.fullmatch(text):
                line = event.start_mark.line + 1 if event.start_mark else 1
                raise ConfigError(f"line {line}: a number has too many digits")
            if isinstance(event, yaml.CollectionStartEvent):
                open_.append((anchor, count - 1))
            elif anchor:
                sizes[anchor] = 1
        elif isinstance(event, yaml.CollectionEndEvent):
            name, before = open_.pop()
            if name:
                sizes[name] = count - before
        if len(open_) > DEEPEST or count > most:
            deep = f"more than {DEEPEST} tables and lists inside each other"
            raise ConfigError(f"{deep}, or more than {most:,} values, what aliases repeat counted each time")


# -- hints -------------------------------------------------------------------------------------------------------
# What lies beside the outputs of a store and only saves time: read with care, and never a reason to fail.
# Such a file may be cut off, altered, of a later version, or no file at all. Then it counts as absent, which
# the log says once, and the next measurement replaces it.


log = logging.getLogger("pipeline")


_warned: set[Path] = set()


def recall(path: Path, kind: type[_T], *, follow: bool = False) -> _T | None:
    """Read a file of JSON as a type, through links if so asked; None where there is none that can be used."""
    try:
        return read_json_file(path, kind, follow=follow)
    except FileNotFoundError:
        return None
    except (ForeignDataError, OSError) as error:
        if path not in _warned:
            _warned.add(path)
            log.warning("%s is passed over: %s", path, error)
        return None


def remember(path: Path, value: Mapping[str, object]) -> None:
    """Write a file whole, if that can be done."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json_text(value, indent=1, sort_keys=True) + "\n")
