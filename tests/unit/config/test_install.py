"""What users are told to install is right wherever the package came from, and never another project."""

import tomllib
from pathlib import Path

import pytest

import pipeline
from pipeline.config import place
from pipeline.config.place import DISTRIBUTION, checkout, install_command

ROOT = Path(pipeline.__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_name_that_is_installed_is_the_one_of_this_project() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    own = [each for each in PROJECT["optional-dependencies"]["dev"] if each.partition("[")[0] == DISTRIBUTION]
    assert own == [f"{DISTRIBUTION}[docs,figures,gguf,math,s3,sentiment,sweeps,tensorboard,trackio,wandb]"]


def test_in_a_checkout_the_folder_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert checkout() == ROOT
    monkeypatch.chdir(ROOT)
    assert install_command("math") == "pip install -e '.[math]'"
    assert install_command() == "pip install -e ."
    monkeypatch.chdir(tmp_path)
    assert install_command("math") == f"pip install -e '{ROOT}[math]'"


def test_from_a_wheel_the_distribution_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(place, "__file__", str(tmp_path / "site-packages/pipeline/config/place.py"))
    assert checkout() is None
    assert install_command("math") == f"pip install '{DISTRIBUTION}[math]'"
