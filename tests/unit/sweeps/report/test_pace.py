import pytest

from pipeline.sweeps.report.status import remaining_s
from pipeline.sweeps.trials import Trial, TrialState

DONE, FAILED, RUNNING = TrialState.done, TrialState.failed, TrialState.running


def trial(state: TrialState, started: float | None, ended: float | None = None) -> Trial:
    return Trial(number=0, parameters={}, state=state, started=started, ended=ended)


@pytest.mark.parametrize(
    ("trials", "most", "left"),
    [
        ([trial(DONE, 0, 100), trial(RUNNING, 60)], 4, 100 * 3 - 40),
        ([trial(DONE, 0, 100), trial(RUNNING, 60), trial(RUNNING, 100)], 5, (100 * 4 - 40) / 2),
        ([trial(DONE, 0, 100), trial(FAILED, 0, 1), trial(RUNNING, 100)], 3, 100),
        ([trial(DONE, 0, 10), trial(RUNNING, 0)], 2, 0),  # one that takes longer than others
        ([trial(DONE, 0, 100)], 4, None),
        ([trial(RUNNING, 0)], 4, None),
        ([trial(DONE, 0, 100), trial(RUNNING, 60)], None, None),
    ],
)
def test_what_is_left_takes_as_long_as_what_has_ended(
    trials: list[Trial], most: int | None, left: float | None
) -> None:
    assert remaining_s(trials, most, 100.0) == left
