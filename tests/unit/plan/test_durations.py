"""What measurements say of other sizes: a small job tells what beginning takes, a large one what work costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.plan.durations import Durations, Timed

SIZES = st.floats(0, 1e5)
SMALL = ["data_collection.prompts_per_round=20", "evaluation.num_prompts=20", "execution.shard_size=10"]


def test_a_job_of_a_size_that_was_measured_takes_what_was_measured() -> None:
    found = Durations({"kind": [Timed(0.02, 0.4), Timed(34.0, 70.0)]})
    assert found.expected_s("kind", 0.02) == pytest.approx(0.4)
    assert found.expected_s("kind", 34.0) == pytest.approx(70.0)
    assert found.expected_s("another", 34.0) == 34.0


def test_a_small_job_that_took_long_does_not_make_large_ones_long() -> None:
    assert Timed(0.008, 0.14).expected_s(8.0) == pytest.approx(8.0, rel=0.1)
    assert Timed(0.02, 0.4).expected_s(34.0) == pytest.approx(34.0, rel=0.1)
    assert Timed(0.7, 9.0).expected_s(36.0) == pytest.approx(55.0, rel=0.1)  # a reference that was looked at too
    # Not even where the machine was so busy that beginning took seconds, or where there was nothing to do.
    assert Timed(0.02, 3.0).expected_s(34.0) == pytest.approx(37.0, rel=0.1)
    assert Timed(0.02, 0.0).expected_s(34.0) == pytest.approx(34.0, rel=0.2)


def test_a_large_job_tells_how_fast_the_machine_is() -> None:
    assert Timed(30.0, 90.0).expected_s(300.0) == pytest.approx(900.0, rel=0.15)
    assert Timed(30.0, 10.0).expected_s(300.0) == pytest.approx(100.0, rel=0.2)
    assert Timed(30.0, 90.0).expected_s(10.0) == pytest.approx(30.0, rel=0.05)


def test_the_measurement_that_is_the_nearest_in_size_counts() -> None:
    found = Durations({"kind": [Timed(0.1, 0.5), Timed(100.0, 300.0)]})
    assert found.expected_s("kind", 50.0) == pytest.approx(150.0, rel=0.05)
    assert found.expected_s("kind", 0.2) == pytest.approx(0.6, rel=0.05)


@pytest.mark.properties
@given(SIZES, SIZES, SIZES, SIZES)
def test_more_work_never_takes_less(size_s: float, took_s: float, one: float, other: float) -> None:
    timed = Timed(size_s, took_s)
    less, more = (timed.expected_s(each) for each in sorted((one, other)))
    assert 0 <= less <= more * (1 + 1e-9)
