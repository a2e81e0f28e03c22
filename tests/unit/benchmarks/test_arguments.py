"""What is typed wrong is told by the option's name, and figures are whole where no terminal is."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import backends, decoding, estimates, guided, scale_sim


@pytest.mark.parametrize("given", ["0", "-1", "1.5", "many"])
@pytest.mark.parametrize(
    ("read", "option"),
    [
        (scale_sim.parse, "--devices"),
        (scale_sim.parse, "--seeds"),
        (backends._arguments, "--rows"),
        (decoding._arguments, "--slots"),
        (guided._arguments, "--new-tokens"),
    ],
)
def test_a_number_that_is_no_good_is_told_with_its_option(
    read: Callable[[list[str]], object], option: str, given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read([option, given])
    assert ended.value.code == 2
    assert f"error: argument {option}: {given!r} is no whole number from 1 on" in capsys.readouterr().err


def test_estimates_of_no_runs_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        estimates.main([str(tmp_path / "nothere")])
    assert ended.value.code == 2
    assert f"error: argument outputs: there is no folder {tmp_path / 'nothere'}" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        estimates.main([str(tmp_path)])
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"no run in {tmp_path} is over, computed something and took 20 s or more\n"
