import contextlib
import json
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from pipeline.errors import ConfigError
from pipeline.foreign import ForeignDataError, converted, read_json, read_resolved


@dataclass(frozen=True, kw_only=True)
class Point:
    x: int
    y: Annotated[float, Meta(ge=0)] = 0.0
    label: str | None = None


def test_data_of_the_right_type_becomes_an_instance() -> None:
    assert read_json(b'{"x": 1, "y": 2, "label": "a"}', Point) == Point(x=1, y=2.0, label="a")


def test_fields_of_a_later_version_are_left_out() -> None:
    assert read_json('{"x": 1, "colour": "red"}', Point) == Point(x=1)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"x": "1"}', "expected `int`, got `str` - at `$.x`"),
        (b'{"y": 1}', "missing required field `x`"),
        (b'{"x": "\\ud800"}', "half of a surrogate pair"),
        (b'{"x": 1, "y": 1e999}', "too large for a number"),
        (b'{"x": 1, "y": -1}', "expected `float` >= 0.0 - at `$.y`"),
        (b'{"x": NaN}', "NaN is no number"),
        (b'{"x": 1, "y": Infinity}', "Infinity is no number"),
        (b'{"x": 1', "no JSON"),
        (b'{"x": ' + b"1" * 5000 + b"}", "no JSON (a number has too many digits)"),
        (b'{"x": 1, "\\udcff": 1}', "half of a surrogate pair"),
        (b'{"x":' * 100_000, "nested too deeply"),
    ],
)
def test_anything_else_is_one_error_that_says_what_was_found(data: bytes, said: str) -> None:
    with pytest.raises(ForeignDataError) as caught:
        read_json(data, Point)
    assert said in str(caught.value)


@pytest.mark.properties
@given(st.binary())
def test_bytes_are_read_or_refused(data: bytes) -> None:
    _read_or_refuse(data)


@pytest.mark.properties
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["x", "y", "label", "z"]), inner),
    )
)
def test_plain_data_is_read_or_refused(value: Any) -> None:
    _read_or_refuse(json.dumps(value).encode())
    with contextlib.suppress(ForeignDataError):
        converted(value, Point)


def _read_or_refuse(data: bytes) -> None:
    try:
        point = read_json(data, Point)
    except ForeignDataError:
        return
    assert type(point.x) is int
    assert point.y >= 0


@pytest.mark.parametrize("digits", ["9" * 5000, "-" + "9" * 5000, "0x" + "f" * 5000, "1:" * 3000 + "1"])
def test_a_number_of_yaml_that_python_does_not_print_is_told_with_its_line(digits: str) -> None:
    with pytest.raises(ConfigError, match=r"^line 3: "):
        read_resolved(f"a: 1\nb:\n  - {digits}\n".encode())
    assert read_resolved(f"a: '{digits}'\n".encode()) == {"a": digits}
