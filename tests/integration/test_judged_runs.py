"""Runs whose completions a model behind an endpoint judges, from the command to the results."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.outputs import formats
from tests.doubles.chat_server import Answer, ChatServer, chat_server
from tests.doubles.small_runs import run_here

KEY, SECRET = "TESTS_JUDGE_KEY", "sk-tests-0123456789"
SMALL = [
    "algos=[DPO]",
    "rounds_of_training=1",
    "data_collection.prompts_per_round=12",
    "evaluation.num_prompts=10",
    "evaluation.num_samples=2",
    "datasets.addition.reward=judge",
]
OPTIONS = "datasets.addition.grading.options"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    monkeypatch.setenv(KEY, SECRET)
    with chat_server() as running:
        yield running


def judge(server: ChatServer, more: str = "") -> str:
    return (
        f"{OPTIONS}={{judge: {{endpoint: '{server.url}', model: the-model, key_env: {KEY}, price: [1, 2]{more}}}}}"
    )


def rows(place: Path) -> dict[tuple[str, str], float]:
    found = json.loads((place / "t/latest/results.json").read_text())["rows"]
    return {(row["algo"], row["metric"]): row["value"] for row in found}


def test_a_run_by_scores_leaves_no_key_and_tells_what_it_took(server: ChatServer, tmp_path: Path) -> None:
    place = tmp_path / "outputs"
    said = run_here(place, *SMALL, judge(server))
    assert rows(place)["reference", "reward"] == pytest.approx(6 / 9)
    assert "the-model-2026" in said
    assert "may get other replies" in said
    assert set(server.keys) == {f"Bearer {SECRET}"}
    files = [file for file in place.rglob("*") if file.is_file()]
    assert any(file.name == "asked.json" for file in files)
    assert not [file for file in files if SECRET.encode() in file.read_bytes()]
    assert SECRET not in said
    # How it is asked changes nothing of what is stored; another price, neither.
    before = len(server.bodies)
    assert "nothing to run" in run_here(
        place, *SMALL, judge(server, ", at_once: 1, per_minute: 6000, attempts: 2")
    )
    assert len(server.bodies) == before


def test_a_run_against_the_reference_has_a_win_rate(server: ChatServer, tmp_path: Path) -> None:
    place = tmp_path / "outputs"
    server.answer = lambda prompt, _: Answer("[[A]]" if prompt[0] < prompt.partition("|")[2][0] else "[[B]]")
    how = ", mode: pair, against: reference, template: '{completion}|{other}'"
    assert "win rate against the greedy completion" in run_here(place, *SMALL, judge(server, how))
    found = json.loads((place / "t/latest/results.json").read_text())["rows"]
    rates = [row for row in found if row["metric"] == "reward"]
    assert {row["algo"] for row in rates} == {"reference", "DPO"}
    assert all(0 <= row["ci_low"] <= row["value"] <= row["ci_high"] <= 1 for row in rates)
    assert ("DPO", "reward/vs_reference") in rows(place)
    # Each request counts once, however many calls and jobs need its reply; two were the trial.
    spent = [formats.read_asked(file)["judge"] for file in place.rglob("asked.json")]
    assert len({each for one in spent for each in one.replies}) == len(server.bodies) - 2
    # It is held against what the reference most likely says, with which greedy decoding ties.
    assert rows(place)["reference", "greedy/reward"] == 0.5


def test_without_the_key_nothing_starts(
    server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY)
    said = run_here(tmp_path / "outputs", *SMALL, judge(server), code=2)
    assert KEY in said
    assert not server.bodies


def test_a_server_that_refuses_the_key_is_found_before_anything_starts(server: ChatServer, tmp_path: Path) -> None:
    server.answer = lambda _, __: Answer(status=401)
    assert KEY in run_here(tmp_path / "outputs", *SMALL, judge(server), code=2)
    assert len(server.bodies) == 1
    assert not (tmp_path / "outputs").exists()


def test_a_row_without_an_answer_is_refused_for_pairs(server: ChatServer, tmp_path: Path) -> None:
    said = run_here(tmp_path / "outputs", *SMALL, judge(server, ", mode: pair"), code=2)
    assert "against=reference" in said
