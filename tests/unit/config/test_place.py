"""The line of the user's own code that is to blame: not ours, and not that of a library."""

import json
from pathlib import Path

import pytest

from pipeline.config.place import own_place, place_of, told
from pipeline.config.values import short
from pipeline.errors import ConfigError, JobError

HERE = __file__


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(Path(HERE).read_text().splitlines(), 1) if line.strip() == text)


def undefined() -> None:
    misspelt()  # type: ignore[name-defined]  # noqa: F821


def in_a_library() -> None:
    json.loads("{")


def in_the_package() -> None:
    short("x")  # type: ignore[arg-type]


def caught(function: object) -> BaseException:
    with pytest.raises(Exception) as found:
        function()  # type: ignore[operator]
    return found.value


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (undefined, "misspelt()  # type: ignore[name-defined]  # noqa: F821"),
        (in_a_library, 'json.loads("{")'),
        (in_the_package, 'short("x")  # type: ignore[arg-type]'),
    ],
)
def test_the_innermost_line_of_ones_own_code_is_named(function: object, line: str) -> None:
    error = caught(function)
    assert own_place(error) == f"{HERE}:{line_of(line)}"
    assert told(error).endswith(f" ({HERE}:{line_of(line)})")
    assert place_of(error).startswith(f"{HERE}:{line_of(line)} (")


def test_what_was_raised_to_be_read_needs_no_place() -> None:
    def raises() -> None:
        raise JobError("read this")

    assert own_place(caught(raises)) == ""
    assert told(ConfigError("read this")) == "read this"


def test_an_exception_that_cannot_be_told_is_told() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    def raises() -> None:
        raise Odd

    assert "Odd: <exception str() failed>" in told(caught(raises))
