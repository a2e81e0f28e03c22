"""What messages name: the line of one's own code that is to blame, and what to install."""

import json
import tomllib
from pathlib import Path

import pytest

import pipeline
from pipeline import errors
from pipeline.config.plain import short

HERE = __file__


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(Path(HERE).read_text().splitlines(), 1) if line.strip() == text)


def undefined() -> None:
    misspelt()  # type: ignore[name-defined]  # noqa: F821


def in_a_library() -> None:
    json.loads("{")


def in_the_package() -> None:
    short("x")  # type: ignore[arg-type]


def caught(function: object) -> BaseException:
    with pytest.raises(Exception) as found:
        function()  # type: ignore[operator]
    return found.value


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (undefined, "misspelt()  # type: ignore[name-defined]  # noqa: F821"),
        (in_a_library, 'json.loads("{")'),
        (in_the_package, 'short("x")  # type: ignore[arg-type]'),
    ],
)
def test_the_innermost_line_of_ones_own_code_is_named(function: object, line: str) -> None:
    error = caught(function)
    assert errors.own_place(error) == f"{HERE}:{line_of(line)}"
    assert errors.told(error).endswith(f" ({HERE}:{line_of(line)})")


def test_what_was_raised_to_be_read_needs_no_place() -> None:
    def raises() -> None:
        raise errors.JobError("read this")

    assert errors.own_place(caught(raises)) == ""
    assert errors.told(errors.ConfigError("read this")) == "read this"


def test_an_exception_that_cannot_be_told_is_told() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    def raises() -> None:
        raise Odd

    assert "Odd: <exception str() failed>" in errors.told(caught(raises))


ROOT = Path(pipeline.__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_name_that_is_installed_is_the_one_of_this_project() -> None:
    assert PROJECT["name"] == errors.DISTRIBUTION
    own = [
        each for each in PROJECT["optional-dependencies"]["dev"] if each.partition("[")[0] == errors.DISTRIBUTION
    ]
    assert own == [f"{errors.DISTRIBUTION}[docs,figures,gguf,math,s3,sentiment,sweeps,tensorboard,trackio,wandb]"]


def test_in_a_checkout_the_folder_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert errors.checkout() == ROOT
    monkeypatch.chdir(ROOT)
    assert errors.install_command("math") == "pip install -e '.[math]'"
    assert errors.install_command() == "pip install -e ."
    monkeypatch.chdir(tmp_path)
    assert errors.install_command("math") == f"pip install -e '{ROOT}[math]'"


def test_from_a_wheel_the_distribution_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "site-packages/pipeline/errors.py"))
    assert errors.checkout() is None
    assert errors.install_command("math") == f"pip install '{errors.DISTRIBUTION}[math]'"
