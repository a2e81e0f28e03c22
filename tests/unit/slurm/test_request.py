"""What a job is to have is checked before a script is written."""

from typing import Any

import pytest

from pipeline.errors import ConfigError
from pipeline.slurm.request import DeviceNeeds, JobRequest, check_request, counts_gpus, gpus_of, seconds_of

RUN, AGENT, LAUNCH = ["run", "experiment.name=x"], ["sweep", "agent", "x"], ["launch", "--", "train.py"]


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("24:00:00", 86400),
        ("2-12", 216000),
        ("2-12:30", 217800),
        ("2-12:30:15", 217815),
        ("infinite", None),
        ("UNLIMITED", None),
    ],
)
def test_times_are_those_of_sbatch(time: str, seconds: int | None) -> None:
    assert seconds_of(time) == seconds


@pytest.mark.parametrize(
    ("gres", "gpus", "counted"),
    [
        ("gpu:8", 8, True),
        ("gpu:h200:8", 8, True),
        ("gpu:a100:4,gpu:h100:2,nvme:1", 6, True),
        ("gpu", 1, False),
        ("gpu:h200", 1, False),
        ("gpu:2(S:0-1)", 2, True),
        ("gres/gpu:3", 3, True),
        ("nvme:1", None, True),
        ("gpu:1g.10gb:2", 2, True),
        ("gpu:1g.10gb", 1, False),
        ("gpu:-1", None, True),
        ("gpu:" + "9" * 5000, 999_999_999, True),
    ],
)
def test_gpus_of_gres(gres: str, gpus: int | None, counted: bool) -> None:
    assert (gpus_of(gres), counts_gpus(gres)) == (gpus, counted)


@pytest.mark.parametrize(
    "given",
    [
        {
            "command": RUN,
            "gres": "gpu:8",
            "time": "24:00:00",
            "account": "acc-1",
            "partition": "a,b",
            "mem": "200G",
        },
        {"command": RUN, "exclude": "n1,n[4-7]", "nodelist": "gpu-[01-03,7]", "output": "logs/%x-%j.out"},
        {"command": AGENT, "array": "0-15%4", "time": "10"},
        {"command": AGENT, "array": "1,5,7-9:2"},
        {"command": LAUNCH, "nodes": 4, "time": "5", "others": {"licenses": "matlab", "exclusive": ""}},
        {"command": RUN, "time": "3", "requeue": False},
        {"command": RUN, "ray": True, "nodes": 4, "gres": "gpu:8", "needs": DeviceNeeds(widest=8)},
        {"command": RUN, "ray": True, "nodes": 4, "gres": "gpu:8", "needs": DeviceNeeds(widest=32)},
        {"command": RUN, "ray": True, "nodes": 4, "needs": DeviceNeeds(on_cpu=True)},
    ],
)
def test_what_can_be_had(given: dict[str, Any]) -> None:
    check_request(JobRequest(**{"name": "x", **given}))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"time": "soon"}, "--time soon: as 90"),
        ({"time": "1:2:3:4"}, "--time"),
        ({"time": "2"}, "would stop as soon as it has begun"),
        ({"time": "15", "notice_s": 1000}, "notice of 1000 s"),
        ({"notice_s": 5}, "--notice 5: at least 60"),
        ({"gres": "gpu 8"}, "--gres gpu 8: as gpu:8"),
        ({"gres": ""}, "--gres is empty"),
        ({"gres": "gpu:-1"}, "--gres gpu:-1: as gpu:8"),
        ({"gres": "gpu:8000"}, "--gres gpu:8000: at most 1,024 GPUs of a node"),
        ({"array": "0-3"}, "every task would do the same"),
        ({"command": AGENT, "array": "0..3"}, "--array 0..3: indices"),
        ({"command": AGENT, "array": "0-3%0"}, "--array 0-3%0"),
        ({"command": AGENT, "array": "4"}, "is one index, and so one agent: for 4 agents write --array 0-3"),
        ({"command": AGENT, "array": "0"}, "for one leave it out"),
        ({"command": AGENT, "array": "-1"}, "--array -1: indices"),
        ({"command": AGENT, "array": "a-b"}, "--array a-b: indices"),
        ({"command": AGENT, "array": "3-0"}, "3-0 goes down; write 0-3"),
        ({"command": AGENT, "array": "0-9999999"}, "indices go up to 4,000,000"),
        ({"command": AGENT, "array": "0-20000"}, "20,001 agents; at most 10,000"),
        ({"command": AGENT, "array": "1-4%\u0661"}, "indices"),
        ({"nodes": 10**6}, "--nodes 1000000: at most 65,536"),
        ({"cpus_per_task": 10**6}, "--cpus-per-task 1000000: at most 65,535"),
        ({"notice_s": 10**6}, "--notice 1000000: at most 65,535 seconds"),
        ({"time": "99999999999"}, "at most 3,650 days"),
        ({"others": {"comment": ""}}, "--option comment: give it a value"),
        ({"others": {"comment": "a\n#SBATCH --nodes=9"}}, "without line breaks"),
        ({"name": "a\u2028b"}, "without line breaks"),
        ({"setup": ["module load a\n#SBATCH --nodes=9"]}, "one line without control characters"),
        ({"nodes": 2}, "a run has workers on one machine, unless --ray brings up a Ray cluster"),
        ({"command": AGENT, "nodes": 2}, "an agent is on one machine. An array has many of them"),
        ({"ray": True, "nodes": 2}, "--ray without GPUs"),
        ({"ray": True, "gres": "gpu:4", "array": "0-3"}, "each on a cluster of its own"),
        ({"ray": True, "command": AGENT}, "has agents on many nodes as an array"),
        ({"ray": True, "command": LAUNCH, "gres": "gpu:8"}, "--ray is for an experiment"),
        (
            {"ray": True, "nodes": 4, "gres": "gpu:4", "needs": DeviceNeeds(widest=6)},
            "has all GPUs of several nodes. Ask for up to 4, or 8, 12 or 16 GPUs in a job, or for --gres gpu:6",
        ),
        ({"nodes": 0}, "--nodes 0: at least 1"),
        ({"cpus_per_task": -1}, "--cpus-per-task -1: at least 1"),
        ({"exclude": "n1 n2"}, "--exclude n1 n2: names of nodes"),
        ({"nodelist": "$(date)"}, "--nodelist"),
        ({"account": "a b"}, "--account a b: one word"),
        ({"mem": "lots"}, "--mem lots"),
        ({"name": "a\nb"}, "--job-name 'a\\nb': without line breaks"),
        ({"name": "a\x1b[31mb"}, "without line breaks"),
        ({"name": " "}, "--job-name is empty"),
        ({"output": "o" * 2000}, "has 2,000 characters"),
        ({"others": {"ntask": "1"}}, "sbatch has no option --ntask"),
        ({"others": {"comment": "a\tb"}}, "without line breaks"),
        ({"others": {"ntasks": "8"}}, "has a line of its own for --ntasks"),
        ({"others": {"gres": "gpu:1"}}, "has a line of its own for --gres"),
    ],
)
def test_what_cannot_is_one_message(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_request(JobRequest(**{"name": "x", "command": RUN, **given}))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
