"""What the pages tell readers to type and to write works as it stands there, on a real run and in a real plan."""

import importlib
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from tests.doubles.small_runs import calm_run, results
from tests.unit.commands.test_typed_commands import PROGRAMS_TYPED

DOCS = Path(__file__).parents[2] / "docs"
LOOKING = ("status", "logs", "why", "show", "compare", "store", "gpus")
STANDS_FOR = {"NAME": "t", "first_run": "t", "JOB": "PITA/r1/train", "PITA/r1/gen*/003": "PITA/r1/generate/000"}
"""Words of the pages -> what they are in the run at hand."""


def looking_commands() -> list[list[str]]:
    """Commands of the pages that look at a run of theirs, each once; what changes the store only said."""
    found = {}
    for _, what, arguments in PROGRAMS_TYPED:
        words = [STANDS_FOR.get(word, word) for word in arguments]
        if what != "commands" or not words or words[0] not in LOOKING or words[1:2] == ["fit"] or "--run" in words:
            continue
        if words[:2] == ["store", "gc"]:
            words = ["store", "gc", "--dry-run"]
        if words[0] in ("status", "logs", "why", "show") and words[1:2] not in ([], ["t"]):
            continue
        if words[0] == "compare" and words[1:] != ["t"]:
            continue
        found[tuple(words)] = words
    return list(found.values())


def test_commands_that_look_at_a_run_do(tmp_path_factory: pytest.TempPathFactory) -> None:
    outputs = calm_run(tmp_path_factory)
    before = results(outputs)
    commands = looking_commands()
    assert {words[0] for words in commands} >= set(LOOKING)
    for words in commands:
        at = [] if words[0] == "gpus" else ["--output-dir", str(outputs)]
        done = CliRunner().invoke(app, [*words, *at])
        assert done.exit_code == 0, f"{words}: {done.output}"
        assert done.output.strip(), words
    assert results(outputs) == before


def code_after(page: str, words: str) -> str:
    """The first indented block of a page that begins with these words."""
    text = (DOCS / page).read_text()
    found = re.search(rf"^    {re.escape(words)}.*\n(?:(?:    .*)?\n)*", text, re.MULTILINE)
    assert found, words
    return re.sub(r"^    ", "", found[0], flags=re.MULTILINE)


def test_the_reward_for_programs_tells_what_its_sandbox_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_code.py").write_text(code_after("own-reward.md", "# my_code.py"))
    monkeypatch.syspath_prepend(str(tmp_path))
    my_code = importlib.import_module("my_code")
    test = "def check(add):\n    assert add(1, 2) == 3"
    texts = ["    return a + b", "    return a - b", "    raise SystemExit"]

    def judged() -> list[float]:
        columns = {"test": [test] * 3, "entry_point": ["add"] * 3, "task_id": ["x"] * 3}
        scores: list[float] = my_code.passes(prompts=["def add(a, b):\n"] * 3, completions=texts, **columns)
        return scores

    monkeypatch.setattr(my_code, "SANDBOX", f"{sys.executable} -")
    assert judged() == [1.0, 0.0, 0.0]
    monkeypatch.setattr(my_code, "SANDBOX", "env no-such-program")
    with pytest.raises(RuntimeError, match="no-such-program"):
        judged()


def test_the_code_of_the_pages_can_be_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reward and the algorithm, in files as a reader would make them, tried before a run starts."""
    (tmp_path / "my_rewards.py").write_text(code_after("own-reward.md", "# my_rewards.py"))
    (tmp_path / "my_algorithm.py").write_text(code_after("own-algorithm.md", "from pipeline import GRPO"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = ["experiment.name=x", "algos=[GRPO]", "algos.PassAtK.class_path=my_algorithm.PassAtK", "dry_run=true"]
    mine = "my_rewards.short_and_right"
    for rewards in (
        [f"datasets.addition.reward={mine}", f"datasets.addition.grading.correct_by={mine}"],
        [f"datasets.addition.rewards={{{mine}: 1.0, exact_match: 0.5}}"],
    ):
        done = CliRunner().invoke(app, ["run", *asked, *rewards, "device=cpu"])
        assert done.exit_code == 0, done.output
        assert "Nothing was started" in done.output
