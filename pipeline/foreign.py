"""Data that others wrote: the one way in which JSON from outside becomes a type of ours.

A worker's message, a file that an algorithm of the user's own left, a journal, a file beside the store: any of
them may be cut off, altered, nested without end, or hold a text where a number belongs. What comes through here is
an instance of the type that was asked for, so nothing behind it needs to look again; all else is one error that
says what was found and where.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn, TypeVar

import msgspec

_T = TypeVar("_T")


class ForeignDataError(ValueError):
    """Data from outside is not what it should be; the message says what was found, and where in it."""


def read_json(data: bytes | str, kind: type[_T]) -> _T:
    """Read JSON as a type.

    Numbers must be finite, as JSON has no others. Fields that the type does not know are left out, so that data of
    a later version can be read.

    Args:
        data: The JSON.
        kind: A type that msgspec knows: a dataclass, a union, containers and plain types. Ranges are written
            ``Annotated[int, msgspec.Meta(ge=0)]``.

    Raises:
        ForeignDataError: The data is no JSON, or not of this type.
    """
    return converted(parse_json(data), kind)


def parse_json(data: bytes | str) -> Any:
    """Read JSON as plain data.

    Raises:
        ForeignDataError: It is none, or it is nested too deeply.
    """
    try:
        text = data if isinstance(data, str) else data.decode(json.detect_encoding(data))
        return _DECODER.decode(text)
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
    except (msgspec.ValidationError, RecursionError, OverflowError, UnicodeError) as error:  # halves of characters
        raise ForeignDataError(_brief(error)) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ForeignDataError(f"this is no JSON ({name} is no number there)")


def _brief(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = str(error)
    return text[:1].lower() + text[1:]


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)  # `json.loads` would make one for every call
