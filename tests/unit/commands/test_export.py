"""Where a model may be exported to, said in the same words by the help and by the refusal."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.commands.export import _check_free
from pipeline.errors import ConfigError


def test_a_model_goes_to_a_new_folder_or_an_empty_one(tmp_path: Path) -> None:
    _check_free(tmp_path / "new")
    _check_free(tmp_path)
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(
        ConfigError, match=r"--to .*: there is something already; name a new folder, or an empty one"
    ):
        _check_free(tmp_path)
    said = CliRunner().invoke(app, ["export", "--help"], env={"COLUMNS": "200"}).output
    assert "a new one, or an empty one" in " ".join(said.split())
