"""All ways to write a text, held to a search through every completion."""

from collections.abc import Collection, Iterator, Mapping
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.learning.generation.stops import spellings


def searched(text: str, pieces: Mapping[int, str], ends: Collection[int], limit: int) -> Iterator[tuple[int, ...]]:
    """Every sequence that a policy may end with, one after the other."""
    for length in range(limit + 1):
        for ids in product(pieces, repeat=length):
            ended = length > 0 and ids[-1] in ends
            if any(token in ends for token in ids[:-1]) or not (ended or length == limit):
                continue
            if "".join("" if token in ends else pieces[token] for token in ids).strip() == text.strip():
                yield ids


TEXTS = st.text("ab ", min_size=0, max_size=3)
PIECES = st.lists(st.text("ab ", max_size=2), min_size=1, max_size=5)


@pytest.mark.properties
@given(TEXTS, PIECES, st.sets(st.integers(0, 4), max_size=2), st.integers(1, 4))
def test_none_is_left_out_and_none_is_there_twice(text: str, given: list[str], ends: set[int], limit: int) -> None:
    pieces = dict(enumerate(given))
    ends &= set(pieces)
    found = [tuple(ids) for ids in spellings(text, pieces, ends, limit)]
    assert len(set(found)) == len(found)
    assert set(found) == set(searched(text, pieces, ends, limit))


LABELS = dict(enumerate([*map(str, range(50)), ",", "|"]))


def test_a_path_is_written_in_one_way_where_there_is_no_room_to_spell_its_labels() -> None:
    """``21`` is also 2 and 1, which takes a token more than a completion may have."""
    found = list(spellings("21,20,5,25,8", LABELS, (), 9))
    assert found == [[21, 50, 20, 50, 5, 50, 25, 50, 8]]
    assert len(list(spellings("21,20,5,25,8", LABELS, (51,), 12))) == 2**3
