"""A written script asks for what was meant, passes words on as they are, and goes back into the queue."""

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.slurm import lint
from pipeline.slurm import script as slurm
from pipeline.terminal.console import Check, Verdict

ODD = ["a b", "it's", 'say "x"', "$(touch hurt)", "`touch hurt`", "a\\", "*?[x]", "~", "#x"]
ODD += ["é漢", "a;b|c&d>e", "$HOME ${x}", "!!", "-", "'\\''"]

PROGRAMS = {
    "srun": '#!/bin/bash\nprintf "%s\\0" "${@:4}" > words\nexit $(cat code)\n',
    "scontrol": '#!/bin/bash\n[ "$1" = requeue ] && echo "$2" > requeued\n',
    "hostname": "#!/bin/bash\necho n7\n",
}


READ = [
    ('--job-name="a b" --ntasks=3', {"job-name": "a b", "ntasks": "3"}),
    ("-J 'a#b $(date)' -n3", {"job-name": "a#b $(date)", "ntasks": "3"}),
    ("\t--ntasks=2\t-c 4 # a remark --nodes=2", {"ntasks": "2", "cpus-per-task": "4"}),
    (r'-J "a\"b"', {"job-name": 'a"b'}),
    (r"-J 'it'\''s'", {"job-name": "it's"}),
    ("--exclude n[1-2]", {"exclude": "n[1-2]"}),
    ("--requeue --exclusive=user", {"requeue": "", "exclusive": "user"}),
]
"""Lines of a script and what is read of them; tests/integration/test_slurm.py asks the real sbatch the same."""


def read(line: str) -> dict[str, str]:
    options, rest = slurm.options_of(shlex.split(line, comments=True))
    assert not rest
    return dict(options)


@pytest.mark.parametrize(("line", "options"), READ)
def test_options_of_a_line(line: str, options: dict[str, str]) -> None:
    assert read(line) == options


def test_options_end_at_the_first_word_that_is_none() -> None:
    words = [
        "--mem",
        "4G",
        "--exclusive",
        "-N2",
        "--of-a-plugin=1",
        "--mine",
        "3",
        "--note",
        "run",
        "--nodes",
        "3",
    ]
    options, rest = slurm.options_of(words, ["run"])
    read = {"mem": "4G", "exclusive": "", "nodes": "2", "of-a-plugin": "1", "mine": "3", "note": ""}
    assert (dict(options), rest) == (read, ["run", "--nodes", "3"])
    with pytest.raises(ConfigError):
        slurm.options_of(["-y"])


@pytest.mark.properties
@given(st.text(st.characters(blacklist_categories=("Cc", "Cs")), min_size=1))
def test_what_is_written_is_read_again(value: str) -> None:
    line = slurm.written("job-name", value)
    assert read(line.removeprefix(slurm.MARK)) == {"job-name": value}
    assert "\n" not in line


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("24:00:00", 86400),
        ("2-12", 216000),
        ("2-12:30:15", 217815),
        ("UNLIMITED", None),
    ],
)
def test_times_are_those_of_sbatch(time: str, seconds: int | None) -> None:
    assert slurm.seconds_of(time) == seconds
    for wrong in ("soon", "1:2:3:4", "٣", "9" * 5000):
        with pytest.raises(ConfigError):
            slurm.seconds_of(wrong)


@pytest.mark.parametrize(
    ("line", "gpus"),
    [
        ("--gres=gpu:a100:4,nvme:1", 4),
        ("--gres=gpu:1g.10gb:2", 2),
        ("--gres=gpu", 1),
        ("-G 8", 4),
        ("--gpus-per-task=1", 3),
        ("--tres-per-task=gres/gpu:2", 6),
        ("--gres=nvme:1", 0),
        (f"--gpus={'9' * 5000}", 0),
    ],
)
def test_gpus_of_a_node(line: str, gpus: int) -> None:
    assert slurm.gpus_of(read(f"--nodes=2 --ntasks-per-node=3 {line}")) == gpus


FIELDS = ("notice_s", "srun", "setup", "ray", "widest", "on_cpu")


def request_of(command: list[str], **given: Any) -> slurm.JobRequest:
    """A job by fields of a request, and options of sbatch with underscores."""
    fields = {name: value for name, value in given.items() if name in FIELDS}
    options = {
        name.replace("_", "-"): value for name, value in given.items() if name not in FIELDS and value is not None
    }
    return slurm.JobRequest(command=command, name="x", options=options, **fields)


def text_of(command: list[str], **given: Any) -> str:
    return slurm.script_text(request_of(command, **given), ".venv/bin/python", "x.sbatch")


def options_in(text: str) -> dict[str, str]:
    lines = [line.removeprefix(slurm.MARK) for line in text.split("\n") if line.startswith(slurm.MARK)]
    return {name: value for line in lines for name, value in read(line).items()}


def carry_out(folder: Path, text: str, code: int = 0, **environment: str) -> int:
    """Have bash run a script with an srun that notes the words after `-m pipeline`, and ends so."""
    for name, body in PROGRAMS.items():
        (folder / name).write_text(body)
        (folder / name).chmod(0o755)
    (folder / "code").write_text(str(code))
    variables = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "41", "SLURM_CPUS_PER_TASK": "8"}
    script = folder / "script"
    script.write_text(text)
    done = subprocess.run(["bash", str(script)], cwd=folder, env={**variables, **environment}, check=False)
    return done.returncode


def words(folder: Path) -> list[str]:
    return [word.decode() for word in (folder / "words").read_bytes().split(b"\0")[:-1]]


def test_a_run(tmp_path: Path) -> None:
    text = text_of(["run", "experiment.name=x", "profile=a100_80gb"], gres="gpu:8", time="24:00:00", account="me")
    assert options_in(text) == {
        "job-name": "x",
        "account": "me",
        "nodes": "1",
        "ntasks-per-node": "1",
        "gres": "gpu:8",
        "cpus-per-task": "64",
        "time": "24:00:00",
        "output": "slurm-%j.out",
        "open-mode": "append",
        "signal": "USR2@300",
        "requeue": "",
    }
    carry_out(tmp_path, text)
    assert words(tmp_path) == ["run", "experiment.name=x", "profile=a100_80gb", "execution.stop_grace_s=240"]


def test_agents_and_a_launch(tmp_path: Path) -> None:
    array = text_of(["sweep", "agent", "lr"], gres="gpu:2", array="0-3%2", time="10")
    options = options_in(array)
    assert (options["array"], options["output"], options["signal"]) == ("0-3%2", "slurm-%A_%a.out", "USR2@150")
    carry_out(tmp_path, array)
    assert words(tmp_path) == ["sweep", "agent", "lr"]
    nodes = text_of(["launch", "--grace", "20", "--", "train.py", "--lr", "1e-3"], gres="gpu:8", nodes="2")
    carry_out(tmp_path, nodes, SLURM_NNODES="2")
    meeting = ["--nnodes", "2", "--master-addr", "n7", "--master-port", "20041"]
    assert words(tmp_path) == ["launch", *meeting, "--grace", "20", "--", "train.py", "--lr", "1e-3"]
    assert "signal" not in options_in(nodes)  # a program may not expect it


def test_what_was_told_to_stop_goes_back_into_the_queue_unless_it_is_not_to(tmp_path: Path) -> None:
    text = text_of(["run", "experiment.name=x"])
    for code in (0, 1, 143):
        assert carry_out(tmp_path, text, code) == code
        assert (tmp_path / "requeued").exists() == (code == 143)
    (tmp_path / "requeued").unlink()
    assert carry_out(tmp_path, text, 143, SLURM_RESTART_COUNT="100") == 143
    assert carry_out(tmp_path, text_of(["run", "experiment.name=x"], no_requeue=""), 143) == 143
    assert not (tmp_path / "requeued").exists()


def test_odd_words_arrive_as_they_are_and_do_no_harm(tmp_path: Path) -> None:
    text = text_of(["run", *ODD], setup=["true"], job_name="$(touch hurt) 'x' #", no_requeue="")
    assert carry_out(tmp_path, text) == 0
    assert words(tmp_path) == ["run", *ODD]
    assert not (tmp_path / "hurt").exists()


@pytest.mark.properties
@given(st.lists(st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" ")), min_size=1))
def test_any_words_make_a_script_that_sbatch_can_read(given_words: list[str]) -> None:
    text = text_of(["launch", "--", *given_words])
    body = text[text.index("\nsrun ") : text.index("\ncode=$?")]
    done = subprocess.run(
        ["bash", "-c", f"srun() {{ printf '%s\\0' \"${{@:6}}\"; }}\n{body}"], capture_output=True, check=True
    )
    assert [word.decode() for word in done.stdout.split(b"\0")[:-1]] == given_words
    assert "\r" not in text
    assert "Slurm: not read" not in [check.name for check in lint.check_text(text)]


RUN, AGENT, LAUNCH = ["run", "experiment.name=x"], ["sweep", "agent", "x"], ["launch", "--", "train.py"]
RAY: dict[str, Any] = {"ray": True, "nodes": "4", "gres": "gpu:8"}


@pytest.mark.parametrize(
    ("command", "given", "named"),
    [
        (AGENT, {"array": "0-15%4", "time": "10"}, ""),
        (LAUNCH, {"nodes": "4", "time": "5", "licenses": "matlab", "exclusive": ""}, ""),
        (RUN, {**RAY, "widest": 8}, ""),
        (RUN, {"time": "soon"}, "--time soon"),
        (RUN, {"time": "2"}, "--time 2"),
        (RUN, {"array": "0-3"}, "--array 0-3"),
        (AGENT, {"array": "4"}, "--array 4"),
        (AGENT, {"nodes": "2"}, "--nodes 2"),
        (RUN, {"ray": True, "nodes": "2"}, "--ray without GPUs"),
        (LAUNCH, {**RAY}, "--ray is for an experiment"),
        (RUN, {"gres": "gpu:4", "widest": 8}, "takes 8 GPUs"),
        (RUN, {**RAY, "widest": 16}, "takes 16 GPUs"),
        (RUN, {"ntasks": "8"}, "--ntasks"),
        ([*RUN, "a\n#SBATCH --nodes=9"], {}, "without control characters"),
        (RUN, {"comment": "a\n#SBATCH --nodes=9"}, "--comment"),
    ],
)
def test_what_would_not_do_what_is_meant_is_one_message(
    command: list[str], given: dict[str, Any], named: str
) -> None:
    if not named:
        slurm.check_request(request_of(command, **given))
        return
    with pytest.raises(ConfigError) as refused:
        slurm.check_request(request_of(command, **given))
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


# -- test lint ---------------------------------------------------------------------------------------------------
# Batch scripts are read before they wait a day in a queue.


RIGHT = """#!/bin/bash
#SBATCH --job-name=x
#SBATCH --gres=gpu:h200:8        # all of them
#SBATCH --ntasks-per-node=1
#SBATCH -c 128

cd /scratch/me
python -m pipeline launch -- train.py \\
    --lr 1
"""
ONE = "#!/bin/bash\n#SBATCH --gres=gpu:1\n"
TWO = "#!/bin/bash\n#SBATCH --gres=gpu:8 --nodes=2\n"
PER_TASK = "#!/bin/bash\n#SBATCH --gres=gpu:8 --ntasks-per-node=8\nsrun python train.py\n"
ALL = "0,1,2,3,4,5,6,7"


def names(checks: list[Check]) -> list[str]:
    return [check.name.removeprefix("Slurm: ") for check in checks if check.verdict is not Verdict.PASS]


@pytest.mark.parametrize(
    ("text", "old", "new", "wrong"),
    [
        (RIGHT, "", "", []),
        (RIGHT, "gpu:h200:8 ", "gpu:h200:1 ", []),
        (RIGHT, "gpu:h200:8", "gpu:a100:4,gpu:h100:4", []),
        (RIGHT, "--ntasks-per-node=1", "--ntasks-per-node=8", ["several copies"]),
        (RIGHT, "python -m pipeline launch -- train.py", "python train.py", ["idle GPUs"]),
        (RIGHT, "cd /scratch/me", "export WORLD_SIZE=8", ["ranks by hand"]),
        (RIGHT, "cd /scratch/me", "cd /scratch/me\n#SBATCH --mem=9G", ["not read"]),
        (RIGHT, "#SBATCH -c", "# SBATCH --mem=9G\n#SBATCH -c", ["not read"]),
        (RIGHT, "-c 128", "-c 128\n#SBATCH --nodes=2", ["no srun"]),
        (RIGHT, "cd /scratch/me", f"export CUDA_VISIBLE_DEVICES={ALL}", []),
        (RIGHT, "cd /scratch/me", "export CUDA_VISIBLE_DEVICES=0,1", ["mask of its own"]),
        (RIGHT, "-c 128", "--output=nowhere/%j.out", ["no folder for the output"]),
        (RIGHT, "-c 128", "--part=gpu --mem_bind=local --gres-flags=enforce-binding", []),
        (PER_TASK, "", "", []),
        (PER_TASK, "gpu:8", "gpu:1", ["fewer GPUs than tasks"]),
        (PER_TASK, "srun ", "", ["no srun"]),
    ],
)
def test_what_is_wrong_is_named(text: str, old: str, new: str, wrong: list[str]) -> None:
    assert old in text
    assert names(lint.check_text(text.replace(old, new))) == wrong


@pytest.mark.parametrize(
    ("script", "wrong"),
    [
        (ONE + "python train.py > train.log 2>&1 &\n", ["nobody waits"]),
        (ONE + "cd runs &&\npython train.py &\nwait $!\n", []),
        (TWO + "srun torchrun --nnodes 2 train.py\n", ["nowhere to meet"]),
        (TWO + "srun torchrun --nnodes=2 \\\n    --master-addr $(hostname) train.py\n", []),
        (ONE + "srun torchrun --nnodes 2 train.py\n", []),
        (TWO + "srun accelerate launch --machine_rank $SLURM_PROCID train.py\n", ["one rank for all"]),
        (TWO + "export NODE_RANK=$SLURM_NODEID\nsrun accelerate launch train.py\n", ["one rank for all"]),
        (TWO + "srun bash -c 'accelerate launch --machine_rank $SLURM_PROCID train.py'\n", []),
        (ONE + "cat <<EOF > other.sh\n#SBATCH --mem=9G\nexport RANK=0\nEOF\nsrun python train.py\n", []),
        (
            # The script that hung: each row of it that is wrong has a message.
            "#!/bin/bash\n#SBATCH --gres=gpu:h200:1   # Only requests 1 GPU!\n#SBATCH --ntasks-per-node=8\n"
            f"export CUDA_VISIBLE_DEVICES={ALL}\npython train.py\n",
            ["fewer GPUs than tasks", "no srun", "mask of its own"],
        ),
        (
            ONE.replace("gpu:1", "gpu:4")
            + "for i in 0 1 2 3; do\n  CUDA_VISIBLE_DEVICES=$i python train.py > $i.log 2>&1 &\ndone\nwait\n",
            [],
        ),
    ],
)
def test_scripts_as_people_write_them_are_understood(script: str, wrong: list[str]) -> None:
    assert names(lint.check_text(script)) == wrong


@pytest.mark.properties
@given(st.lists(st.sampled_from([*PER_TASK, "\\", "\n#SBATCH ", "#", '"', "'", "\x00", "=", "--", "9" * 5000])))
def test_any_text_is_looked_through_to_its_end(parts: list[str]) -> None:
    """Numbers too that nobody means: Python refuses to read 5,000 digits."""
    assert lint.check_text("".join(parts))


def test_what_is_no_batch_script_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("hello")
    (tmp_path / "right").write_text(RIGHT)
    assert names(lint.check_script(tmp_path / "right")) == []
    for name in ("missing", "pipe", "text"):
        with pytest.raises(ConfigError, match=name):
            lint.check_script(tmp_path / name)


def test_the_job_of_this_process_is_read_from_its_environment() -> None:
    def faults(**environment: str) -> list[str]:
        return names(lint.slurm_checks({"SLURM_JOB_ID": "7", **environment}))

    right = {
        "SLURM_NNODES": "2",
        "SLURM_GPUS_ON_NODE": "8",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "1(x2)",
        "SLURM_STEP_ID": "0",
        "CUDA_VISIBLE_DEVICES": ALL,
    }
    assert faults(**right) == []
    assert faults(**{**right, "SLURM_STEP_ID": ""}) == ["no srun"]
    assert faults(SLURM_JOB_GPUS="4,5", CUDA_VISIBLE_DEVICES="4") == ["mask of its own"]
    asked = {"SLURM_GPUS_ON_NODE": "1", "SLURM_NTASKS": "8", "CUDA_VISIBLE_DEVICES": "0"}
    assert faults(**asked) == faults(**asked, SLURM_NTASKS_PER_NODE="8") == ["fewer GPUs than tasks"]
    assert lint.slurm_checks({"SLURM_CONF": "/etc/slurm.conf"}) == []
