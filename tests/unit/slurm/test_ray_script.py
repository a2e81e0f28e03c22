"""A script that brings up a Ray cluster: what it starts, in which order, and how all of it ends."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.slurm.lint import check_text
from pipeline.slurm.script import script_text
from pipeline.terminal.console import Verdict
from tests.unit.slurm.test_script import request_of

PROGRAMS = {
    "srun": """
echo "srun $*" >> said
while [[ $1 == --* ]]; do shift; done
exec "$@"
""",
    "scontrol": 'echo "scontrol $*" >> said',
    "python": """
told="${*:3}"
case "$told" in
    "slurm ray address") [ ! -e no-ray ] && echo 10.0.0.7:20082 ;;
    "slurm ray start"*)
        echo "start ${#RAY_AUTH_TOKEN} $RAY_AUTH_MODE" >> said
        echo "$RAY_AUTH_TOKEN" >> tokens
        trap 'echo ended >> said; exit 0' USR1
        trap '' TERM
        echo x >> started
        until [ -e never ]; do sleep 0.02; done ;;
    "slurm ray wait"*)
        until [ "$(wc -l < started)" = "$SLURM_NNODES" ]; do sleep 0.02; done
        exit "$(cat waited)" ;;
    "run "*)
        echo "run" >> said
        printf "%s\\0" "${@:3}" > words
        trap 'sleep 0.1; exit 143' TERM
        touch runs
        while [ -e wait ]; do sleep 0.02; done
        exit "$(cat code)" ;;
esac
""",
}


def text_of(command: list[str] | None = None, **given: Any) -> str:
    given = {"ray": True, "nodes": "2", "gres": "gpu:8", **given}
    return script_text(request_of(command or ["run", "experiment.name=x", "a=$b"], **given), "python", "x.sbatch")


def begin(folder: Path, text: str, code: int = 0, waited: int = 0, **environment: str) -> subprocess.Popen[bytes]:
    """Have bash run a script with an srun that starts what it is told to, here."""
    for name, body in PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}")
        (folder / name).chmod(0o755)
    for name, number in (("code", code), ("waited", waited)):
        (folder / name).write_text(str(number))
    (folder / "started").unlink(missing_ok=True)
    variables = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "41",
        "SLURM_CPUS_PER_TASK": "64",
        "SLURM_NNODES": "2",
        "SLURM_GPUS_ON_NODE": "8",
        "SLURMD_NODENAME": "n1",
    }
    (folder / "script").write_text(text)
    return subprocess.Popen(["bash", "script"], cwd=folder, env={**variables, **environment})


def carry_out(folder: Path, text: str, **given: Any) -> tuple[int, list[str]]:
    code = begin(folder, text, **given).wait()
    return code, (folder / "said").read_text().splitlines() if (folder / "said").exists() else []


def test_the_head_is_on_the_first_node_and_the_run_beside_it(tmp_path: Path) -> None:
    code, said = carry_out(tmp_path, text_of())
    assert code == 0
    head, others, run = [line for line in said if line.startswith("srun")]
    if "--head" in others:  # both begin at once
        head, others = others, head
    numbers = "--address=10.0.0.7:20082 --num-cpus=64 --num-gpus=8"
    first = "--overlap --export=ALL --nodes=1 --ntasks=1 --nodelist=n1"
    assert head == f"srun {first} python -m pipeline slurm ray start --head {numbers}"
    assert others.endswith(f" python -m pipeline slurm ray start {numbers}")
    assert {"--overlap", "--nodes=1", "--ntasks=1", "--exclude=n1", "--kill-on-bad-exit=0"} < set(others.split())
    assert run.startswith(f"srun {first} python -m pipeline run ")
    assert [line for line in said if not line.startswith(("srun", "start"))] == ["run", "ended", "ended"]
    assert (tmp_path / "words").read_text().split("\0")[:-1] == [
        *("run", "experiment.name=x", "a=$b", "execution.stop_grace_s=240"),
        *("execution.backend=ray", "execution.ray.address=10.0.0.7:20082"),
    ]


@pytest.mark.parametrize(("code", "again"), [(143, True), (0, False), (1, False)])
def test_the_exit_code_is_that_of_the_run(tmp_path: Path, code: int, again: bool) -> None:
    ended, said = carry_out(tmp_path, text_of(), code=code)
    assert ended == code
    assert said[-1] == ("scontrol requeue 41" if again else "ended")  # Ray has ended before
    assert said.count("ended") == 2


def test_a_cancelled_job_waits_for_its_run_and_does_not_come_back(tmp_path: Path) -> None:
    """Slurm tells the script, and everything else too; what the script itself hears is the end."""
    (tmp_path / "wait").touch()
    script = begin(tmp_path, text_of())
    give_up = time.monotonic() + 120
    while not (tmp_path / "runs").exists():
        assert time.monotonic() < give_up
        time.sleep(0.02)
    for number in [script.pid, *children(script.pid)]:
        os.kill(number, signal.SIGTERM)
    assert script.wait() == 143
    said = (tmp_path / "said").read_text().splitlines()
    assert said.count("ended") == 2
    assert not any("requeue" in line for line in said)


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_where_ray_is_missing_nothing_is_started(tmp_path: Path) -> None:
    (tmp_path / "no-ray").touch()
    assert carry_out(tmp_path, text_of()) == (1, [])


def test_where_the_head_does_not_come_there_is_no_run(tmp_path: Path) -> None:
    code, said = carry_out(tmp_path, text_of(), waited=1)
    assert code == 1
    assert [line for line in said if not line.startswith(("srun", "start"))] == ["ended", "ended"]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"no_requeue": ""},
        {"nodes": "1"},
        {"time": "24:00:00", "setup": ["set -u"]},
        {"gres": None, "command": ["run", "experiment.name=x", "device=cpu"]},
        {"nodes": "4", "command": ["run", "experiment.name=x", "training.gpus_per_job=24"]},
    ],
)
def test_it_has_none_of_the_faults_that_scripts_are_looked_through_for(given: dict[str, Any]) -> None:
    [check] = check_text(text_of(**given))
    assert check.verdict is Verdict.PASS
