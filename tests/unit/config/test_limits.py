"""What would take the reader of YAML or of the command line for ever is refused before it is read."""

from pathlib import Path

import pytest

from pipeline.config.bounds import DEEPEST, LARGEST_FILE, MOST_VALUES, check_file
from pipeline.config.install import conf_dir
from pipeline.config.limits import check_overrides
from pipeline.config.load import load_config
from pipeline.errors import ConfigError

NAME = "experiment.name=t"
# Ten values, repeated ten times by each of nine lines.
LAUGHS = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)
)


def own_profile(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile" / "mine.yaml").write_text(f"# @package _global_\n{text}")
    return [NAME, f"hydra.searchpath=[file://{tmp_path}]", "profile=mine"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LAUGHS, f"more than {MOST_VALUES:,} values"),
        ("a: &a {b: *a}\n", "&a names holds itself"),
        ("a: " + "[" * 50_000, f"more than {DEEPEST} deep"),
        ("a: " + "{b: " * 50_000, f"more than {DEEPEST} deep"),
        ("a: [" + "1, " * MOST_VALUES + "1]", f"more than {MOST_VALUES:,} values"),
        ("# " + "x" * LARGEST_FILE, f"{LARGEST_FILE:,} at most"),
    ],
    ids=["anchors of anchors", "circle", "lists", "tables", "values", "bytes"],
)
def test_a_file_out_of_bounds_is_refused_with_its_name(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(own_profile(tmp_path, text))
    assert str(caught.value).startswith(f"{tmp_path}/profile/mine.yaml: ")
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_anchors_that_are_used_as_they_are_meant_work(tmp_path: Path) -> None:
    text = "algos:\n  PITA: &both {batch_size: 8, epochs: 2}\n  QSharp:\n    <<: *both\n    atoms: 2\n"
    config = load_config(own_profile(tmp_path, text))
    assert [config.algos[name].batch_size for name in ("PITA", "QSharp")] == [8, 8]


def test_what_ships_is_far_within_bounds() -> None:
    for path in conf_dir().rglob("*.yaml"):
        check_file(path)
        assert path.stat().st_size < LARGEST_FILE / 50


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("output_dir=" + "[" * 5000, "brackets inside each other"),
        ("output_dir=" + "${" * 3000, "brackets inside each other"),
        ("output_dir=" + "x" * 1_000_000, "1,000,011 characters"),
        ("x" * 1_000_000, "1,000,000 characters"),
    ],
    ids=["brackets", "interpolations", "value", "no key"],
)
def test_settings_out_of_bounds_are_refused(override: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config([NAME, override])
    assert said in str(caught.value)
    assert len(str(caught.value)) < 300


def test_many_settings_are_bounded_together() -> None:
    check_overrides([f"algos.PITA.options.x{i}=1" for i in range(1000)])
    with pytest.raises(ConfigError, match="100,000 characters in all"):
        check_overrides(["a=" + "x" * 9000] * 12)


def test_a_folder_of_settings_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no folder .*nowhere \(hydra.searchpath in command-line\)"):
        load_config([NAME, f"hydra.searchpath=[file://{tmp_path}/nowhere]"])
