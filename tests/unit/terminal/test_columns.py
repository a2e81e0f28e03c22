"""Tables leave out what has no room; what they show is whole."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from pipeline.terminal.columns import EXTRA, Column, FittedTable, Need, cut_middle, fit, least_width, shorten

HEADINGS = st.text(st.characters(exclude_categories=("C", "Z")), max_size=16)
CELLS = st.text(st.characters(exclude_categories=("C", "Z")) | st.sampled_from("字😀[]/ab"), max_size=40)
NEEDS = st.builds(
    lambda rank, least, more: Need(rank, least, least + more),
    st.integers(0, 15),
    st.integers(1, 40),
    st.integers(0, 60),
)


@st.composite
def tables(draw: st.DrawFn) -> FittedTable:
    number = draw(st.integers(1, 6))
    columns = [
        Column(
            heading=f"{at}{draw(HEADINGS)}",
            right=draw(st.booleans()),
            rank=draw(st.integers(0, 15)),
            least=draw(st.none() | st.integers(1, 20)),
        )
        for at in range(number)
    ]
    table = FittedTable(columns, lines=draw(st.booleans()))
    for _ in range(draw(st.integers(0, 3))):
        table.add_row(*draw(st.lists(CELLS, min_size=number, max_size=number)))
    return table


def printed(table: FittedTable, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.properties
@given(st.lists(NEEDS, min_size=1, max_size=12), st.integers(1, 200), st.integers(0, 3), st.integers(0, 4))
def test_columns_that_are_shown_have_the_room_that_they_need(
    needs: list[Need], width: int, between: int, around: int
) -> None:
    given_ = fit(needs, width, between=between, around=around)
    assert 0 in given_
    assert all(cells <= max(1, needs[at].whole) for at, cells in given_.items())
    if len(given_) > 1:
        assert all(given_[at] >= needs[at].least for at in given_)
        assert sum(given_.values()) + between * (len(given_) - 1) + around <= width


@pytest.mark.properties
@given(st.lists(NEEDS, min_size=1, max_size=12), st.integers(1, 200), st.integers(0, 50))
def test_a_wider_terminal_never_shows_fewer_columns(needs: list[Need], width: int, more: int) -> None:
    assert set(fit(needs, width, between=3, around=4)) <= set(fit(needs, width + more, between=3, around=4))


@pytest.mark.properties
@given(st.lists(NEEDS, min_size=2, max_size=12), st.integers(1, 200))
def test_what_is_left_out_matters_less_than_what_is_shown(needs: list[Need], width: int) -> None:
    kept = fit(needs, width, between=3)
    left_out = [needs[at].rank for at in range(len(needs)) if at not in kept]
    assert not left_out or max((needs[at].rank for at in kept if at), default=0) <= min(left_out)


@pytest.mark.properties
@given(tables(), st.integers(40, 200))
def test_cells_that_may_not_be_cut_are_printed_whole(table: FittedTable, width: int) -> None:
    lines = printed(table, width)
    assert max(map(cell_len, lines), default=0) <= width
    shown = table.fitted(width)
    numbers = {column.heading: at for at, column in enumerate(table.columns) if column.least is None}
    for place, column in enumerate(shown.columns):
        heading = column.header.plain  # type: ignore[union-attr]
        if heading not in numbers or (place == 0 and len(shown.columns) == 1):
            continue
        cells = [cell.plain for cell in column.cells]  # type: ignore[union-attr]
        assert cells == [row[numbers[heading]] for row, _ in table._rows]
        assert all(cell.strip() in "\n".join(lines) for cell in cells)


def test_extra_columns_go_before_a_name_is_cut_and_the_rest_afterwards() -> None:
    needs = [Need(0, 5, 20), Need(1, 6, 6), Need(EXTRA, 6, 6)]
    assert fit(needs, 32, between=0) == {0: 20, 1: 6, 2: 6}
    assert fit(needs, 31, between=0) == {0: 20, 1: 6}
    assert fit(needs, 15, between=0) == {0: 9, 1: 6}
    assert fit(needs, 10, between=0) == {0: 10}


# -- test shorten ------------------------------------------------------------------------------------------------
# Names that are too wide for their place stay within it, and apart.


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
