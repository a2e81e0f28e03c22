"""The comparison with TRL runs from end to end, and compares the same."""

import pytest


@pytest.mark.filterwarnings("ignore")
def test_losses_are_those_of_trl_step_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.training import TOLERANCE, main  # and TRL, which other tests need not load

    shape = ["--steps", "3", "--batch", "8", "--micro-batch", "4", "--lengths", "6", "40"]
    settings = ["padding_free=true", "group_by_length=true"]
    found = main(["--tiny", "--turns", "1", "--warm-up", "0", *shape, "--settings", *settings])
    assert [one.load.method for one in found] == ["sft", "dpo", "grpo"]
    for one in found:
        assert [len(turns[0].losses) for turns in one.turns.values()] == [3, 3]
        assert one.apart() < TOLERANCE
    assert "TRL / ours: wall" in capsys.readouterr().out
