"""Names that are too wide for their place stay within it, and apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from pipeline.terminal.columns import cut_middle, least_width, shorten

LETTERS = st.characters(exclude_categories=("C", "Z"))
NAMES = st.lists(st.text(LETTERS | st.sampled_from("ab/字é́😀"), min_size=1, max_size=120), max_size=12)


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("GRPO", 4, "GRPO"),
        ("reference", 8, "refe…nce"),
        ("reference", 1, "…"),
        ("reference", 0, ""),
        ("我的算法名字", 7, "我…字"),
        ("cafe\u0301 au lait", 6, "caf…it"),
        ("xxxxxxxxxe\u0301", 3, "x…e\u0301"),
    ],
)
def test_the_middle_of_a_name_is_left_out(name: str, width: int, shown: str) -> None:
    assert cut_middle(name, width) == shown


def test_names_that_differ_in_the_middle_alone_are_cut_up_to_there() -> None:
    names = [f"{'x' * 40}{number}{'y' * 40}" for number in range(3)]
    assert list(shorten(names, 16).values()) == ["xxxxx…0yyyy…yyyy", "xxxxx…1yyyy…yyyy", "xxxxx…2yyyy…yyyy"]


def test_the_least_width_is_one_at_which_names_are_told_apart() -> None:
    names = ["alpha_one", "alpha_two", "beta_one"]
    assert least_width(names, 1) == 3
    assert least_width(["short"], 12) == 5
    assert least_width([], 12) == 0


@pytest.mark.properties
@given(NAMES, st.integers(1, 200))
def test_shortened_names_fit_and_those_that_fit_are_left_alone(names: list[str], width: int) -> None:
    shown = shorten(names, width)
    assert set(shown) == set(names)
    for name, text in shown.items():
        assert cell_len(text) <= width
        assert text == name or cell_len(name) > width


@pytest.mark.properties
@given(NAMES, st.integers(1, 40))
def test_from_the_least_width_on_no_two_names_look_the_same(names: list[str], at_least: int) -> None:
    shown = shorten(names, least_width(names, at_least))
    assert len(set(shown.values())) == len(set(names))
