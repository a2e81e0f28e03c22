"""The home folder at the beginning of a setting, which bash expands for keys without a dot alone."""

from __future__ import annotations

import pytest

from pipeline.config.load import load_config
from pipeline.config.words import at_home


@pytest.mark.parametrize("home", ["/home/me", "/home/a (b), c=d"])
def test_a_setting_may_begin_with_the_home_folder(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", home)
    config = load_config(["experiment.name=x", "execution.store=~/store", "output_dir=~"])
    assert (config.execution.store, config.output_dir) == (f"{home}/store", home)


@pytest.mark.parametrize(
    ("word", "is_home"),
    [
        ("output_dir=~/x", True),
        ("execution.shared_store=~/x", True),
        ("datasets.mine.path=~/x", True),
        ("+algos.mine.a_key_of_ones_own=~/x", True),
        ("execution.ray.runtime_env.working_dir=~/x", True),
        ("hydra.sweep.dir=~/x", True),
        ("algos=~", False),
        ("model=~", False),
        ("execution.priority=~", False),
        ("rounds_of_training=~", False),
    ],
)
def test_only_where_a_path_may_stand_it_is_the_home_folder(
    word: str, is_home: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert at_home([word]) == [word.replace("~", "/home/me") if is_home else word]
