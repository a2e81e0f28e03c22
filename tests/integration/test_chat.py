"""Somebody talks with a trained policy: line by line, by a pipe and on a terminal."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pipeline
from pipeline.__main__ import app
from pipeline.commands.chat import settled
from pipeline.learning.generation import guided
from pipeline.learning.models import load
from tests.doubles.small_runs import ROOT, calm_run, run_here, wait_for, with_reference
from tests.integration.test_terminal import on_a_terminal

ASKED = ["123+456=", "619+049=", "123+456="]
JOINED = "{% for turn in messages %}{{ turn.content }}{% endfor %}"
"""A chat template whose text a model of sums can read."""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a finished run of PITA and QSharp, left as it is."""
    return calm_run(tmp_path_factory)


def talk(outputs: Path, *words: str, said: str, code: int = 0) -> tuple[str, str]:
    """What it answers, and what else it says."""
    there = ("--device", "cpu", "--output-dir", str(outputs))
    done = CliRunner().invoke(app, ["chat", "t", *there, *words], input=said)
    assert done.exit_code == code, done.output
    return done.stdout, done.stderr


def test_each_line_is_completed_as_in_python(outputs: Path) -> None:
    answers, told = talk(outputs, "PITA", "--eta", "0.01", said="\n".join([*ASKED, "", ASKED[0]]))
    model = pipeline.guided("t", "PITA", output_dir=outputs, device="cpu")
    drawn = [model.generate(line, seed=at, eta=0.01)[0] for at, line in enumerate(ASKED)]
    assert answers.splitlines() == drawn  # an empty line ends it
    assert talk(outputs, "PITA", "--eta", "0.01", said="\r\n".join(ASKED))[0] == answers  # of a file from Windows
    assert "no chat template" in told
    short, _ = talk(outputs, "QSharp", "--max-tokens", "1", said=ASKED[0])
    assert len(short.strip()) == 1


def test_a_model_with_a_chat_template_reads_the_whole_conversation(
    outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    load_tokenizer, complete = load.load_tokenizer, guided.Guided.complete

    def with_template(*arguments: object, **options: object) -> object:
        tokenizer = load_tokenizer(*arguments, **options)  # type: ignore[arg-type]
        tokenizer.chat_template = JOINED
        return tokenizer

    def noted(self: guided.Guided, prompts: list[object], **options: object) -> object:
        asked.extend(prompts)
        return complete(self, prompts, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(load, "load_tokenizer", with_template)
    monkeypatch.setattr(guided.Guided, "complete", noted)
    words = ("reference", "--max-tokens", "2", "--system", "0")
    answers, _ = talk(outputs, *words, said="1+1=\n2+2=\n" + "1" * 3000 + "\n3+3=\n", code=2)
    said = answers.splitlines()
    first, second = {"role": "user", "content": "1+1="}, {"role": "user", "content": "2+2="}
    assert asked[:2] == [[first], [first, {"role": "assistant", "content": said[0]}, second]]
    # What does not fit is refused, and the talk goes on without it.
    last = asked[3]
    assert isinstance(last, list)
    assert [turn["content"] for turn in last] == ["1+1=", said[0], "2+2=", said[1], "3+3="]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["none"], "addition/tiny/s0/PITA"),
        (["PITA", "--system", "Be brief."], "no chat template"),
        (["reference", "--eta", "1"], "eta"),
        (["PITA", "--device", "tpu"], "must be cpu"),
    ],
)
def test_a_mistake_gets_one_message(outputs: Path, words: list[str], expected: str) -> None:
    answers, told = talk(outputs, *words, said="1+1=\n", code=2)
    assert not answers
    assert expected in told
    assert "Traceback" not in told


def test_where_no_method_gives_a_model_the_reference_does(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    run_here(outputs, *with_reference(tmp_path_factory, outputs))
    for words in ([], ["Counted"], ["s0/Counted"]):
        answers, told = talk(outputs, *words, said="1+1=\n", code=2)
        assert not answers
        assert "addition/tiny/any/reference" in told
        assert "s0/Counted\n" not in told
    answers, _ = talk(outputs, "reference", said="1+1=\n")
    assert answers.strip()


def test_ctrl_c_ends_an_answer_and_then_the_talk(
    outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "slow.py"
    program.write_text(
        "import sys, time\n"
        "from pipeline.commands import chat, start\n"
        "from pipeline.learning.generation.guided import Guided\n"
        "def complete(self, prompts, *, on_text, **options):\n"
        "    on_text('begun\\x1b[31m')\n"
        "    time.sleep(600)\n"
        "Guided.complete = complete\n"
        "start.start('pipeline.__main__:main')\n"
    )
    words = [sys.executable, str(program), "chat", "t", "PITA", "--output-dir", str(outputs), "--device", "cpu"]
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    process, master = on_a_terminal(words, tmp_path)
    shown = bytearray()

    def has(text: bytes, times: int = 1) -> bool:
        with suppress(OSError):
            shown.extend(os.read(master, 4096))
        return shown.count(text) >= times

    wait_for(lambda: has(b"> "))
    os.write(master, b"1+1=\n")
    wait_for(lambda: has(rb"begun\x1b[31m"))
    os.write(master, b"\x03")
    wait_for(lambda: has(b"> ", 2))
    assert process.poll() is None
    os.write(master, b"\x03")
    wait_for(lambda: has(b"never") or process.poll() is not None)
    assert process.returncode == 128 + signal.SIGINT
    has(b"the rest")
    assert shown.endswith(b"\n")  # what the shell asks next has a line of its own
    assert b"\x1b[31m" not in shown
    os.close(master)


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [("a b", ["\n\n"], "a b"), ("a\n", ["\n\n"], "a"), ("a\ufffd", [], "a"), ("aQ", ["Question:", "\n"], "a")],
)
def test_what_may_still_change_is_not_shown(text: str, stop: list[str], expected: str) -> None:
    assert settled(text, stop) == expected
