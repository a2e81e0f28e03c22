"""A script that brings up a Ray cluster: what it starts, in which order, and how all of it ends."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError, WorkerError
from pipeline.slurm import ray_nodes
from pipeline.slurm.script import script_text
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
        while true; do sleep 0.02; done ;;
    "slurm ray wait"*)
        until [ "$(wc -l < started)" = "$SLURM_NNODES" ]; do sleep 0.02; done
        exit "$(cat waited)" ;;
    "run "*)
        echo "run" >> said
        printf "%s\\0" "${@:3}" > words
        exit "$(cat code)" ;;
esac
""",
}


def text_of(command: list[str] | None = None, **given: Any) -> str:
    given = {"ray": True, "nodes": "2", "gres": "gpu:8", **given}
    return script_text(request_of(command or ["run", "experiment.name=x", "a=$b"], **given), "python", "x.sbatch")


def carry_out(folder: Path, text: str, code: int = 0, waited: int = 0) -> tuple[int, list[str]]:
    """Have bash run a script with an srun that starts what it is told to, here; its code, and what was said."""
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
    ended = subprocess.run(["bash", "script"], cwd=folder, env=variables, check=False).returncode
    return ended, (folder / "said").read_text().splitlines() if (folder / "said").exists() else []


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


@pytest.mark.parametrize(("code", "again"), [(143, True), (1, False)])
def test_the_exit_code_is_that_of_the_run(tmp_path: Path, code: int, again: bool) -> None:
    ended, said = carry_out(tmp_path, text_of(), code=code)
    assert ended == code
    assert said[-1] == ("scontrol requeue 41" if again else "ended")  # Ray has ended before
    assert said.count("ended") == 2


def test_where_ray_or_its_head_is_missing_there_is_no_run(tmp_path: Path) -> None:
    code, said = carry_out(tmp_path, text_of(), waited=1)
    assert (code, said.count("ended"), "run" in said) == (1, 2, False)
    (tmp_path / "said").unlink()
    (tmp_path / "no-ray").touch()
    assert carry_out(tmp_path, text_of()) == (1, [])


# -- test ray nodes ----------------------------------------------------------------------------------------------
# What a script with `--ray` runs on the nodes of its job, with a Ray that only pretends.


JOB = {"SLURM_JOB_ID": "41", "SLURMD_NODENAME": "n1", "SLURM_JOB_NODELIST": "n[1-2]"}
SCONTROL = """#!/bin/sh
case "$*" in
    *hostnames*) printf 'n1\\nn2\\n' ;;
    *) echo "NodeName=$4 Arch=x86_64 NodeAddr=127.0.0.1 NodeHostName=gpu-7 Port=1" ;;
esac
"""
PRETENDED = """
import os, subprocess, sys, time
if "--fail" in sys.argv:
    sys.exit("the port is taken")
folder = next(word.partition("=")[2] for word in sys.argv if word.startswith("--temp-dir="))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with open(os.environ["SAID"], "w") as said:
    print(folder, os.getpid(), child.pid, *sys.argv[1:], file=said)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an scontrol and a package that takes Ray's place."""
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    package = tmp_path / "ray" / "scripts"
    package.mkdir(parents=True)
    for file in (tmp_path / "ray" / "__init__.py", package / "__init__.py"):
        file.touch()
    (package / "scripts.py").write_text(PRETENDED)
    return tmp_path


def test_the_port_follows_from_the_job_and_passes_over_what_is_taken() -> None:
    assert ray_nodes.free_port(41) in range(20_000, 30_000, 2)
    first = ray_nodes.free_port(7)
    for taken in (first, first + 1):
        with socket.create_server(("", taken)):
            assert ray_nodes.free_port(7) not in (first, first + 1)
    assert ray_nodes.free_port(8) != ray_nodes.free_port(7)


def test_the_address_is_by_slurms_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_nodes, "has_package", lambda _: True)
    assert ray_nodes.head_address(JOB).startswith("127.0.0.1:2")
    with pytest.raises(ConfigError, match="SLURM_JOB_ID"):
        ray_nodes.head_address({})
    monkeypatch.setattr(ray_nodes, "has_package", lambda _: False)
    with pytest.raises(ConfigError, match=r"needs Ray, .*pip install"):
        ray_nodes.head_address(JOB)


def node(here: Path, *words: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **JOB, "PYTHONPATH": str(here), "SAID": str(here / "said")}
    command = [sys.executable, "-m", "pipeline", "slurm", "ray", "start", "--address", "127.0.0.1:20082", *words]
    with (here / "stderr").open("w") as stderr:
        return subprocess.Popen(command, env=environment, stderr=stderr)


def until(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_node_is_deaf_to_what_ends_a_job_and_leaves_nothing(here: Path) -> None:
    """Slurm tells every process of a step; a node ends when the script says so."""
    process = node(here, "--head", "--num-gpus=8")
    until(lambda: (here / "said").exists() and (here / "said").read_text().endswith("\n"))
    folder, ray, child, *words = (here / "said").read_text().split()
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    assert {"start", "--block", "--head", "--port=20082", "--node-name=n1", "--num-gpus=8"} <= set(words)
    assert {"--include-dashboard=false", "--disable-usage-stats"} <= set(words)
    told = [process.pid, int(ray)]
    for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT):
        for pid in told:
            os.kill(pid, number)
    for pid in told:  # what is held back is pending, so it has come
        waiting = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "ShdPnd" in line)
        assert int(waiting.split()[1], 16) & 1 << signal.SIGTERM - 1
    assert process.poll() is None
    process.send_signal(signal.SIGUSR1)
    assert process.wait() == 0
    assert not any(map(lives, (int(ray), int(child))))
    assert not Path(folder).exists()


def test_a_ray_that_does_not_start_has_its_last_words(here: Path) -> None:
    process = node(here, "--head", "--fail")
    assert process.wait() == 2
    assert "Ray on n1 has ended by itself: the port is taken" in (here / "stderr").read_text()


def test_nodes_that_do_not_join_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"n1"}
    monkeypatch.setattr(ray_nodes, "_nodes", lambda _address: there)
    assert ray_nodes.wait_for_nodes("a:1", JOB, within_s=0) == (["n1"], ["n2"])
    with pytest.raises(WorkerError, match="the head of Ray has ended"):
        ray_nodes.wait_for_nodes("a:1", JOB, lives=lambda: False)
    there.add("n2")
    assert ray_nodes.wait_for_nodes("a:1", JOB) == (["n1", "n2"], [])
    there.clear()
    with pytest.raises(WorkerError, match="there is no head of Ray at a:1 after 0 s"):
        ray_nodes.wait_for_nodes("a:1", JOB, within_s=0)
