"""Finding the run that a user means."""

from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.runs.loaded import choose_run, find_job
from tests.doubles.runs import CHAIN, WrittenRun, chain_plan


def test_a_run_is_chosen_by_the_begin_of_its_timestamp(tmp_path: Path) -> None:
    for stamp in ("2026-01-02_10-00-00", "2026-01-02_10-00-00_2", "2026-01-03_09-00-00"):
        WrittenRun(tmp_path, chain_plan(), stamp)
    assert choose_run(tmp_path, "x").path.name == "2026-01-03_09-00-00"
    assert choose_run(tmp_path, "x", "2026-01-03").path.name == "2026-01-03_09-00-00"
    assert choose_run(tmp_path, "x", "2026-01-02_10-00-00").path.name == "2026-01-02_10-00-00"
    with pytest.raises(ConfigError, match="fits several runs"):
        choose_run(tmp_path, "x", "2026-01-02")
    with pytest.raises(ConfigError, match="has no run '2025'"):
        choose_run(tmp_path, "x", "2025")
    with pytest.raises(ConfigError, match="Known: x"):
        choose_run(tmp_path, "y")
    with pytest.raises(ConfigError, match="no folder"):
        choose_run(tmp_path / "nothing", "x")


# -- finding the job that a user means ---


SHARDS = [f"{CHAIN}/r1/generate/000", f"{CHAIN}/r1/generate/001"]
TRAIN = f"{CHAIN}/r1/train"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (TRAIN, TRAIN),
        ("r1/train", TRAIN),
        ("r1/tr", TRAIN),
        ("*1/*/001", SHARDS[1]),
        ("r1/generate/001/", SHARDS[1]),
        ("d/m/any/s0/X/r1/generate/001", SHARDS[1]),
    ],
    ids=["id", "end", "part", "pattern", "slash", "chain"],
)
def test_a_job_is_found_by(given: str, found: str) -> None:
    assert find_job(chain_plan().jobs, given) == found


def test_a_job_that_is_none_or_many_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"fits 2 jobs.*\n.*r1/train\n.*r2/train"):
        find_job(chain_plan().jobs, "train")
    with pytest.raises(ConfigError, match=r"no job fits 'r1/trian'. Nearest:\n  d/m/s0/X/r1/train"):
        find_job(chain_plan().jobs, "r1/trian")
    with pytest.raises(ConfigError, match=r"no job fits 'S0/XX'. Nearest:\n  d/m/s0/X"):
        find_job(chain_plan().jobs, "S0/XX")
    with pytest.raises(ConfigError, match=r"no job fits .none.. There are:\n  d/m"):
        find_job(chain_plan().jobs, "none")
