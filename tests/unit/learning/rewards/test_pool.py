"""Hostile completions cost themselves and nothing else."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.config.schema import GradingConfig
from pipeline.errors import ConfigError, JobError
from pipeline.learning.rewards.calling import Item
from pipeline.learning.rewards.scoring import Graded, GraderPool
from pipeline.machine.descendants import VARIABLE as TAGS
from tests.doubles import rewards as doubles

OBEDIENT = f"{doubles.__name__}:obedient"
JUDGE = f"{doubles.__name__}:judge"


MINE = "PIPELINE_TEST_POOL"
"""Marks what this test process has started, as others may run the same tests on this machine."""


@pytest.fixture(scope="module")
def pool() -> Iterator[GraderPool]:
    os.environ[MINE] = str(os.getpid())
    with GraderPool(GradingConfig(processes=2, timeout_s=4.0, memory_gib=1.0)) as pool:
        yield pool
    assert not tagged()
    del os.environ[MINE]


def tagged() -> list[int]:
    """Every process that a pool of this test process has started, directly or not."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ() if process.status() != psutil.STATUS_ZOMBIE else {}
            if TAGS in environment and environment.get(MINE) == str(os.getpid()):
                found.append(process.pid)
        except psutil.Error:
            pass
    return found


def items(*texts: str) -> list[Item]:
    return [Item(f"p{index}", text, [index], {"level": index}) for index, text in enumerate(texts)]


def grade(pool: GraderPool, *texts: str, function: str = OBEDIENT) -> list[Graded]:
    return alone(pool, function, {}, items(*texts))


def alone(pool: GraderPool, function: str, options: dict[str, Any], given: list[Item]) -> list[Graded]:
    """Grade each item by a call of its own."""
    return [one for (one,) in pool.grade(function, options, [[item] for item in given])]


HOSTILE = {
    "loop": ("timeout", "no answer within 4 s"),
    "native": ("timeout", "no answer within 4 s"),
    "exit": ("crash", "exit code 3, twice"),
    "quit": ("error", "SystemExit: no more"),
    "raise too bad": ("error", "ValueError: too bad"),
    "memory": ("error", "MemoryError"),
    "recurse": ("error", "RecursionError"),
    "infinite": ("error", "the reward is infinite"),
    "garbage": ("crash", "ended with"),
    "family": ("timeout", "no answer within 4 s"),
    "orphan": ("crash", "exit code 1"),
    "none": (None, ""),  # a reward that does not apply has not failed
    "nan": (None, ""),
}


def test_a_hostile_completion_costs_itself_alone(pool: GraderPool) -> None:
    """And a process that was killed while it had nothing to do costs nothing."""
    grade(pool, "a", "b", "c", "d")
    for pid in pool.pids():
        os.kill(pid, signal.SIGKILL)
    texts = [text for order in HOSTILE for text in ("a", order)]
    found = dict(enumerate(grade(pool, *texts)))
    assert [found[at] for at in range(0, len(texts), 2)] == [Graded(at) for at in range(0, len(texts), 2)]
    outcomes = {texts[at]: found[at] for at in range(1, len(texts), 2)}
    assert {order: (one.fault, one.value) for order, one in outcomes.items()} == {
        order: (fault, None) for order, (fault, _) in HOSTILE.items()
    }
    assert all(said in outcomes[order].message for order, (_, said) in HOSTILE.items())
    assert set(tagged()) == set(pool.pids())


def test_a_completion_votes_for_the_answer_that_the_reward_reads_and_else_for_nothing(pool: GraderPool) -> None:
    assert grade(pool, " b ")[0].answer is None
    found = alone(pool, f"{doubles.__name__}:first_letter", {"letter": "b"}, [Item("p", "bcd", [1])])
    assert found == [Graded(1.0, "b")]


@pytest.mark.parametrize("order", ["fork", "fork raise"])
def test_a_process_that_a_reward_forks_answers_to_no_call(pool: GraderPool, order: str) -> None:
    assert [one.value for one in grade(pool, order, "a", order, "b")] == [0.25, 1, 0.25, 3]


def test_graders_are_kept_while_none_of_them_dies(pool: GraderPool) -> None:
    before = {one.value for one in grade(pool, *["pid"] * 8)}
    grade(pool, "raise", "quit", "none")
    after = {one.value for one in grade(pool, *["pid"] * 8)}
    assert len(before & after) >= 1
    assert set(pool.pids()) >= {int(pid or 0) for pid in after}


def test_a_grader_that_is_killed_from_outside_costs_no_score(pool: GraderPool, tmp_path: Path) -> None:
    """As by a kernel that is short of memory: what counts is the second try, with no other grader beside it."""
    texts = [f"victim {tmp_path}", *["sleep 0.05"] * 3]
    found = grade(pool, *texts)
    assert [one.fault for one in found] == [None] * 4
    first, second = ((tmp_path / name).read_text().split() for name in ("first", "second"))
    assert first[0] != second[0]
    assert second[1:] == []
    assert len(first) > 1


def test_what_kills_its_grader_is_tried_twice_and_always_comes_out_the_same(
    pool: GraderPool, tmp_path: Path
) -> None:
    blamed = Graded(fault="crash", message="the grading process ended with signal 6 (SIGABRT), twice")
    for texts in (["a", f"fatal {tmp_path}", "b"], [f"fatal {tmp_path}", f"slow {tmp_path}"]):
        found = grade(pool, *texts)
        assert found[texts.index(f"fatal {tmp_path}")] == blamed
    assert (tmp_path / "fatal").read_text() == "...."
    assert found[1].fault == "timeout"
    assert (tmp_path / "slow").read_text() == "."  # a timeout is nobody else's doing


def test_a_grader_that_a_thread_keeps_busy_is_replaced(pool: GraderPool) -> None:
    for _ in range(2):
        found = grade(pool, "thread", "a", "b", "c")
        assert [one.value for one in found if one.fault is None and one.value != 0.75] == [1, 2, 3]


def test_graders_have_neither_torch_nor_a_gpu(pool: GraderPool) -> None:
    assert [one.value for one in grade(pool, "torch", "devices")] == [0, 0]


def test_async_rewards_are_awaited_at_the_same_time() -> None:
    with GraderPool(GradingConfig(processes=1, timeout_s=2.0)) as pool:
        found = grade(pool, "meet1", "meet22", "meet333", function=JUDGE)
    assert [one.value for one in found] == [5, 6, 7]


def test_an_async_reward_that_blocks_is_found_out(pool: GraderPool) -> None:
    found = grade(pool, "a", "block", "bb", function=JUDGE)
    assert [one.fault for one in found] == [None, "timeout", None]
    assert [found[0].value, found[2].value] == [1, 2]


def test_a_column_that_cannot_be_sent_is_named(pool: GraderPool) -> None:
    with pytest.raises(JobError, match="column 'level' holds object"):
        alone(pool, OBEDIENT, {}, [Item("p", "a", [1], {"level": object()})])


def test_a_reward_that_cannot_be_imported(pool: GraderPool) -> None:
    with pytest.raises(ConfigError, match="cannot import"):
        grade(pool, "a", function="no_such_module:reward")


OWNER = f"""
import sys, json
from pipeline.learning.rewards.calling import Item
from pipeline.config.schema import GradingConfig
from pipeline.learning.rewards.scoring import GraderPool
pool = GraderPool(GradingConfig(processes=2))
pool.grade({OBEDIENT!r}, {{}}, [[Item("p", "a", [at])] for at in range(4)])
print(json.dumps(pool.pids()), flush=True)
pool.grade({OBEDIENT!r}, {{}}, [[Item("p", "regex", [at])] for at in range(2)])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the process group is what ends them")
def test_graders_die_with_their_owner_even_in_the_middle_of_a_regular_expression() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    pids = json.loads(owner.stdout.readline())
    assert len(pids) == 2
    graders = [psutil.Process(pid) for pid in pids]
    while not all(grader.cpu_times().user > 0.1 for grader in graders):
        time.sleep(0.05)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    _, alive = psutil.wait_procs(graders, timeout=200)
    assert not alive
