"""One run or many: asked of Hydra, which composes everything for an answer, only where something may say so."""

from pathlib import Path

import pytest
from hydra._internal.hydra import Hydra
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.config import load

MANY = """\
# @package _global_
hydra:
  mode: MULTIRUN
  sweeper: {params: {algos.PITA.eta: "1,2"}}
"""


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A word for each time that Hydra composes."""
    times: list[str] = []
    hydras = Hydra.compose_config

    def counted(*args: object, **kwargs: object) -> object:
        times.append("composed")
        return hydras(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Hydra, "compose_config", counted)
    return times


def said(folder: Path, *words: str) -> str:
    done = CliRunner().invoke(app, ["run", "experiment.name=x", f"output_dir={folder}", "dry_run=true", *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_plain_request_is_composed_once(composed: list[str], tmp_path: Path) -> None:
    assert "run algos" not in said(tmp_path, "algos.PITA.eta=3")
    assert len(composed) == 1


def test_a_setting_may_make_it_many_runs(tmp_path: Path) -> None:
    assert said(tmp_path, "hydra.mode=MULTIRUN", "algos.PITA.eta=1,2").count("run algos.PITA.eta=") == 2


def test_so_may_a_file_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "many.yaml").write_text(MANY)
    told = said(tmp_path, "--config-dir", str(tmp_path), "experiment=many")
    assert [f"run algos.PITA.eta={eta}" in told for eta in (1, 2)] == [True, True]


@pytest.mark.parametrize(
    ("text", "may"), [(MANY, True), ("hydra: {searchpath: [x]}", True), ("models: {a: model}", False)]
)
def test_and_a_file_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, may: bool) -> None:
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile" / "mine.yaml").write_text(text)
    assert not load._files_speak_of_it()
    monkeypatch.setattr(load, "conf_dir", lambda: tmp_path)
    assert load._files_speak_of_it.__wrapped__() is may
