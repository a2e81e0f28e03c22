"""What of a request is looked at before anything is started, beside its settings."""

import os
from pathlib import Path

import pytest

from pipeline.commands.request import prepare
from pipeline.errors import ConfigError
from tests.doubles.composing import quick_config


def test_a_working_folder_whose_name_is_no_utf8_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff"))
    odd.mkdir()
    monkeypatch.chdir(odd)
    for settings in ([], [f"output_dir={tmp_path}", "execution.store=store"]):
        with pytest.raises(ConfigError, match=r"whose name is no UTF-8.* set output_dir to one"):
            prepare(quick_config(["experiment.name=t", "device=cpu", *settings]))
    assert not list(odd.iterdir())
    assert prepare(quick_config(["experiment.name=t", "device=cpu", f"output_dir={tmp_path}"])).plan.jobs
