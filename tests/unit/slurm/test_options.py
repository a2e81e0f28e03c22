"""Options are read as sbatch reads them; tests/integration/test_slurm.py asks the real one the same."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.slurm.options import MARK, gpus_of, options_of, seconds_of, written

READ = [
    ('--job-name="a b" --ntasks=3', {"job-name": "a b", "ntasks": "3"}),
    ("-J 'a#b $(date)' -n3", {"job-name": "a#b $(date)", "ntasks": "3"}),
    ("\t--ntasks=2\t-c 4 # a remark --nodes=2", {"ntasks": "2", "cpus-per-task": "4"}),
    ("--ntasks=2#remark", {"ntasks": "2"}),
    (r'-J "a\"b"', {"job-name": 'a"b'}),
    (r"-J 'it'\''s'", {"job-name": "it's"}),
    ("-J 'a'b'c d'", {"job-name": "abc d"}),
    ("-J '-x' --ntasks 2", {"job-name": "-x", "ntasks": "2"}),
    ("--ntasks=2 --ntasks=4", {"ntasks": "4"}),
    ("--exclude n[1-2]", {"exclude": "n[1-2]"}),
    ("--cpus-per-t=3", {"cpus-per-task": "3"}),
    ("--requeue --exclusive=user", {"requeue": "", "exclusive": "user"}),
]
REFUSED = ["-J a b", "ntasks=2", "-J 'open", "--ntask-per-node 2", "--ntasks", "X --ntasks=2"]


def read(line: str) -> dict[str, str]:
    options, rest = options_of(shlex.split(line, comments=True))
    assert not rest
    return dict(options)


@pytest.mark.parametrize(("line", "options"), READ)
def test_options_of_a_line(line: str, options: dict[str, str]) -> None:
    assert read(line) == options


def test_options_end_at_the_first_word_that_is_none() -> None:
    words = ["--mem", "4G", "--exclusive", "-N2", "--of-a-plugin=1", "--mine=3", "--note", "run", "--nodes", "3"]
    options, rest = options_of(words, ["mine=", "note"])
    assert dict(options) == {
        "mem": "4G",
        "exclusive": "",
        "nodes": "2",
        "of-a-plugin": "1",
        "mine": "3",
        "note": "",
    }
    assert rest == ["run", "--nodes", "3"]
    for wrong in (["--gpu-per-node", "4"], ["--mem"]):
        with pytest.raises(ConfigError):
            options_of(wrong)


@pytest.mark.properties
@given(st.text(st.characters(blacklist_categories=("Cc", "Cs")), min_size=1))
def test_what_is_written_is_read_again(value: str) -> None:
    line = written("job-name", value)
    assert read(line.removeprefix(MARK)) == {"job-name": value}
    assert "\n" not in line


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("24:00:00", 86400),
        ("2-12", 216000),
        ("2-12:30", 217800),
        ("2-12:30:15", 217815),
        ("UNLIMITED", None),
    ],
)
def test_times_are_those_of_sbatch(time: str, seconds: int | None) -> None:
    assert seconds_of(time) == seconds
    for wrong in ("soon", "1:2:3:4", "٣", "9" * 5000):
        with pytest.raises(ConfigError):
            seconds_of(wrong)


@pytest.mark.parametrize(
    ("line", "gpus"),
    [
        ("--gres=gpu:8", 8),
        ("--gres=gpu:a100:4,nvme:1", 4),
        ("--gres=gpu:a100:4,gpu:h100:4", 8),
        ("--gres=gpu:1g.10gb:2", 2),
        ("--gres nvme:1,gpu:2", 2),
        ("--gres=gpu", 1),
        ("--gpus-per-node=h100:4", 4),
        ("--gpus=8", 4),
        ("-G 8", 4),
        ("--gpus-per-task=1", 3),
        ("--tres-per-task=gres/gpu:2", 6),
        ("--gres=nvme:1", 0),
        ("--gpus-per-node=٣", 0),
        (f"--gpus={'9' * 5000}", 0),
    ],
)
def test_gpus_of_a_node(line: str, gpus: int) -> None:
    assert gpus_of(read(f"--nodes=2 --ntasks-per-node=3 {line}")) == gpus
