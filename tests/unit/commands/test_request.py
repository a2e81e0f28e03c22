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


@pytest.mark.parametrize(
    ("installed", "settings", "said"),
    [
        (False, [], r"needs Ray, which is not installed: pip install .*ray.*execution\.backend=local"),
        (
            True,
            ["execution.jobs_per_device=2", "execution.ray.resources={GPU: 1, mine: 0.5}"],
            "Ray gives each worker a device of its own",
        ),
        (
            True,
            ["distributed.gpu_ids=[0]", "execution.ray.address=auto"],
            r"Ray chooses the GPUs of a cluster\. Say how many with distributed\.num_gpus",
        ),
    ],
)
def test_what_cannot_be_done_on_ray_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool, settings: list[str], said: str
) -> None:
    monkeypatch.setattr("pipeline.commands.request.is_installed", lambda: installed)
    with pytest.raises(ConfigError, match=said):
        prepare(quick_config(["experiment.name=x", f"output_dir={tmp_path}", "execution.backend=ray", *settings]))
