"""Lines for sbatch are read as it reads them; tests/integration/test_slurm.py asks the real one the same."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.slurm.header import Unreadable, read_header, words_of, written

READ = [
    ('--job-name="a b" --ntasks=3', {"job-name": "a b", "ntasks": "3"}),
    ("-J 'a#b $(date)' -n3", {"job-name": "a#b $(date)", "ntasks": "3"}),
    ("\t--ntasks=2\t-c 4 # a remark --nodes=2", {"ntasks": "2", "cpus-per-task": "4"}),
    ("--ntasks=2#remark", {"ntasks": "2"}),
    (r"-J a\#b", {"job-name": "a#b"}),
    (r"-J 'a\\b'", {"job-name": r"a\b"}),
    (r'-J "a\"b"', {"job-name": 'a"b'}),
    (r"-J 'it'\''s'", {"job-name": "it's"}),
    (r"-J 'it\'s'", {"job-name": "it's"}),
    ("-J 'a'b'c d'", {"job-name": "abc d"}),
    ("-J '-x' --ntasks 2", {"job-name": "-x", "ntasks": "2"}),
    ("--ntasks=2 --ntasks=4", {"ntasks": "4"}),
    ("--exclude n[1-2]", {"exclude": "n[1-2]"}),
    ("--cpus-per-t=3", {"cpus-per-task": "3"}),
    ("--ntasks=2 \\", {"ntasks": "2"}),
    ("--requeue --exclusive=user", {"requeue": "", "exclusive": "user"}),
]
REFUSED = [
    "-J a b",
    "ntasks=2",
    r"--ntasks=2 \\",
    "-J 'open",
    "--ntask-per-node=2",
    "--ntasks",
    r"-J a\ b",
    "X --ntasks=2",
]


@pytest.mark.parametrize(("line", "options"), READ)
def test_options_of_a_line(line: str, options: dict[str, str]) -> None:
    header = read_header([f"#SBATCH {line}"])
    assert header.options == options
    assert header.refused == {}


@pytest.mark.parametrize("line", REFUSED)
def test_what_sbatch_refuses_is_told(line: str) -> None:
    assert read_header(["#!/bin/bash", f"#SBATCH {line}"]).refused.keys() == {2}


def test_only_lines_before_the_first_command_count() -> None:
    lines = ["#!/bin/bash", "#SBATCH -n2", "", "# x", "#SBATCH -N3", "echo", "#SBATCH -c4", " #SBATCH -c5"]
    header = read_header([*lines, "# SBATCH --x", "##SBATCH --y", "#sbatch -c7"])
    assert header.options == {"ntasks": "2", "nodes": "3"}
    assert header.late == [(7, "#SBATCH -c4")]
    assert [number for number, _ in header.misspelt] == [8, 9, 11]


def test_a_second_component_is_left_out() -> None:
    header = read_header(["#SBATCH -n2", "#SBATCH hetjob", "#SBATCH -n9"])
    assert (header.options, header.others) == ({"ntasks": "2"}, True)


TEXTS = st.text(st.characters(blacklist_categories=("Cc", "Cs")), min_size=1)


@pytest.mark.properties
@given(TEXTS)
def test_what_is_written_is_read_again(value: str) -> None:
    line = written("job-name", value)
    assert read_header([line]).options == {"job-name": value}
    assert "\n" not in line


@pytest.mark.properties
@given(st.text())
def test_reading_ends_in_words_or_in_one_error(text: str) -> None:
    with suppress(Unreadable):
        assert all(isinstance(word, str) for word in words_of(text))


@pytest.mark.parametrize(
    "option", ["--container-image=nvcr.io/nvidia/pytorch:25.01-py3", "--container-mount-home"]
)
def test_options_of_containers_are_known(option: str) -> None:
    header = read_header(["#!/bin/bash", f"#SBATCH {option} --ntasks=2"])
    assert (header.options["ntasks"], header.refused, header.unknown) == ("2", {}, {})


def test_an_option_that_a_plugin_may_have_is_not_refused() -> None:
    header = read_header(["#!/bin/bash", "#SBATCH --foo=2"])
    assert (header.refused, header.unknown) == ({}, {2: "foo"})
