"""What users are told to install is right wherever the package came from, and never another project."""

import re
import tomllib
from pathlib import Path

import pytest

import pipeline
from pipeline.config import install
from pipeline.config.install import DISTRIBUTION, checkout, install_command
from pipeline.runs.tracking.trackers import TRACKERS

ROOT = Path(pipeline.__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_name_that_is_installed_is_the_one_of_this_project() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    own = [each for each in PROJECT["optional-dependencies"]["dev"] if each.partition("[")[0] == DISTRIBUTION]
    assert own == [f"{DISTRIBUTION}[docs,figures,gguf,math,s3,sentiment,sweeps,tensorboard,trackio,wandb]"]


@pytest.mark.parametrize("name", TRACKERS)
def test_the_extra_of_a_tracker_brings_what_writes_and_the_program_to_look_with(name: str) -> None:
    brought = {re.split("[<>=]", each)[0] for each in PROJECT["optional-dependencies"][name]}
    program = next(word for word in TRACKERS[name].look.split() if "=" not in word)
    assert {TRACKERS[name].package, program} <= brought


def test_in_a_checkout_the_folder_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert checkout() == ROOT
    monkeypatch.chdir(ROOT)
    assert install_command("math") == "pip install -e '.[math]'"
    assert install_command() == "pip install -e ."
    monkeypatch.chdir(tmp_path)
    assert install_command("math") == f"pip install -e '{ROOT}[math]'"


def test_from_a_wheel_the_distribution_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(install, "__file__", str(tmp_path / "site-packages/pipeline/config/install.py"))
    assert checkout() is None
    assert install_command("math") == f"pip install '{DISTRIBUTION}[math]'"


def test_no_page_or_message_installs_a_project_of_another_name() -> None:
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("pipeline/**/*.py"),
    ]
    wrong = [
        str(page)
        for page in pages
        if "install 'pipeline[" in page.read_text() or "install pipeline" in page.read_text()
    ]
    assert not wrong
