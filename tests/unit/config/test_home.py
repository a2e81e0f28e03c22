"""The home folder at the beginning of a setting, which bash expands for keys without a dot alone."""

from __future__ import annotations

import pytest

from pipeline.config.home import at_home
from pipeline.config.load import load_config
from pipeline.errors import ConfigError


@pytest.mark.parametrize("home", ["/home/me", "/home/a (b), c=d"])
def test_a_setting_may_begin_with_the_home_folder(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", home)
    config = load_config(["experiment.name=x", "execution.store=~/store", "output_dir=~"])
    assert (config.execution.store, config.output_dir) == (f"{home}/store", home)


def test_what_else_a_wave_means_stays_as_it_is() -> None:
    words = ["~algos", "--flag=~/x", "key='~/x'", "key=a~/b", "key=~you/x", "experiment.name=x"]
    assert at_home(words) == words


def test_elsewhere_a_wave_is_refused_in_words() -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(["experiment.name=x", "execution.store=~you/x"])
    assert str(refused.value) == (
        "cannot read 'execution.store=~you/x': ~ is your home folder at the beginning of a value alone, "
        "KEY=~/FOLDER. Elsewhere write $HOME."
    )
