"""How the command of a trial is started on several devices, and how it is typed."""

import shlex
import sys

import pytest

from pipeline.sweeps.agents.programs import as_ranks, as_typed, is_of_outer
from pipeline.sweeps.agents.rank_zero import rank_environment

PYTHON = shlex.quote(sys.executable)


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        ("/usr/bin/env python train.py --lr=1", "train.py --lr=1"),
        ("/venv/bin/python3.11 -u train.py", "train.py"),
        ("python -m my.train --lr 1", "-m my.train --lr 1"),
        ("env A=1 python train.py", "env A=1 python train.py"),
        ("bash run.sh 1", "bash run.sh 1"),
        ("python -c pass", "python -c pass"),
        ("torchrun --nproc-per-node=2 train.py", None),
        ("/usr/bin/env accelerate launch train.py", None),
        ("python -m torch.distributed.run train.py", None),
        ("python -m pipeline launch -- train.py", None),
    ],
)
def test_what_is_started_on_each_device(command: str, ranks: str | None) -> None:
    assert as_ranks(command.split()) == (None if ranks is None else ranks.split())


@pytest.mark.parametrize(
    ("command", "typed"),
    [
        (f"/usr/bin/env {PYTHON} train.py", "python train.py"),
        (f"{PYTHON} run_parallel.py", "python run_parallel.py"),
        ("/usr/bin/env python3 train.py", "python3 train.py"),
        ("/usr/bin/env /venv/bin/python train.py", "/venv/bin/python train.py"),
        (f"/usr/bin/env A=1 {PYTHON} train.py", f"/usr/bin/env A=1 {PYTHON} train.py"),
        ("./train.sh", "./train.sh"),
        ("", ""),
    ],
)
def test_a_command_is_told_as_a_user_types_it(command: str, typed: str) -> None:
    assert as_typed(shlex.split(command)) == shlex.split(typed)


def test_runs_of_others_do_not_leak_into_trials() -> None:
    leaking = ["WANDB_RUN_ID", "WANDB_SERVICE", "WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH", "PIPELINE_TRIAL"]
    assert all(is_of_outer(name) for name in leaking)
    assert not any(is_of_outer(name) for name in ("WANDB_API_KEY", "WANDB_MODE", "HF_HOME"))


def test_the_first_rank_alone_is_a_run_and_all_have_the_parameters() -> None:
    given = {"WANDB_RUN_ID": "r", "WANDB_SWEEP_ID": "s", "WANDB_SWEEP_PARAM_PATH": "p", "A": "b"}
    for rank in ({}, {"RANK": "0"}):
        assert rank_environment({**given, **rank}) == {**given, **rank}
    other = {"WANDB_SWEEP_PARAM_PATH": "p", "A": "b", "RANK": "1", "WANDB_MODE": "disabled"}
    assert rank_environment({**given, "RANK": "1"}) == other
