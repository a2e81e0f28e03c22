"""Code of the user's own: how it is found, and what is said where it is not."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.config.load import load_config
from pipeline.config.schema import AlgoConfig, DatasetConfig
from pipeline.config.user_code import (
    check_settings_class,
    check_unchanged,
    find_module,
    import_object,
    source_hash,
)
from pipeline.errors import ConfigError, JobError
from pipeline.learning.algos.base import Algorithm
from pipeline.learning.algos.qsharp import QSharp
from pipeline.learning.datasets.shipped import Addition
from tests.doubles.composing import quick_config

NAME = "experiment.name=t"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with modules that nothing has imported yet; they are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]
    source_hash.cache_clear()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("x = {}\ny = x['a']\n", ":2 (y = x['a']): KeyError: 'a'"),
        ("import json\njson.loads('{')\n", ":2 (json.loads('{')): JSONDecodeError"),
        ("x = 1\ndef f(:\n", ":2 (def f(:): SyntaxError: invalid syntax"),
        ("import sys\nsys.exit('no')\n", ":2 (sys.exit('no')): SystemExit: no"),
        ("from pipeline.learning.algos.base import Stage\nStage()\n", ":2 (Stage()): TypeError"),
    ],
    ids=["error", "in a library", "syntax", "exit", "in the package"],
)
def test_an_error_inside_the_module_names_its_own_line(folder: Path, content: str, said: str) -> None:
    (folder / "own_broken.py").write_text(content)
    with pytest.raises(ConfigError) as caught:
        import_object("own_broken.Thing")
    assert str(caught.value).startswith(f"cannot import 'own_broken.Thing': {folder}/own_broken.py{said}")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("own_modul.Thing", "Did you mean 'own_module'?"),
        ("own_package.thngs.Thing", "Did you mean 'things'?"),
        ("own_module.Thin", "Did you mean 'Thing'?"),
        ("own_module:Thing.Iner", "has no 'Iner'"),
        ("own_module.Thing.Inner", "there is no module 'Thing'"),
        ("./own_package/things.py", "this is no dotted path"),
        ("Thing", "this is no dotted path"),
        ("__main__.Thing", "workers do not run your script again"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(folder: Path, path: str, said: str) -> None:
    (folder / "own_module.py").write_text("class Thing: pass\n")
    (folder / "own_package").mkdir()
    (folder / "own_package" / "things.py").touch()
    with pytest.raises(ConfigError) as caught:
        import_object(path)
    assert str(caught.value).startswith(f"cannot import '{path}': ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_module_is_found_without_being_run(folder: Path) -> None:
    (folder / "own_loud.py").write_text("raise ValueError\n")
    assert find_module("own_loud.reward").origin == str(folder / "own_loud.py")
    with pytest.raises(ConfigError, match="there is no module 'own_silent'"):
        find_module("own_silent.reward")
    with pytest.raises(ConfigError, match="there is no module 'more'"):
        find_module("json.more.reward")


def test_code_that_is_not_what_was_planned_is_not_run(folder: Path) -> None:
    file = folder / "own_edited.py"
    file.write_text("Thing = 1\n")
    planned = {"own_edited.Thing": source_hash("own_edited.Thing"), "math.floor": None}
    check_unchanged(planned)
    file.write_text("Thing = 2\n")
    check_unchanged(planned)  # this process has imported what was planned
    source_hash.cache_clear()
    with pytest.raises(JobError, match=r"own_edited\.py was changed after this run had begun"):
        check_unchanged(planned)


def test_who_imports_torch_while_planning_is_told_so(folder: Path) -> None:
    (folder / "own_heavy.py").write_text("import torch\nThing = 1\n")
    (folder / "own_light.py").write_text("Thing = 1\n")
    (folder / "torch.py").touch()  # takes no seconds
    code = (
        "from pipeline.config.user_code import import_object\n"
        "from pipeline.plan.contents import import_warnings\n"
        "import_object('own_light.Thing')\n"
        "assert import_warnings() == ()\n"
        "import_object('own_heavy.Thing')\n"
        "import_object('own_heavy.Thing')\n"
        "(said,) = import_warnings()\n"
        "assert said.startswith('own_heavy imports torch'), said\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


class Bare(AlgoConfig):
    steps: int = 3


@dataclass(kw_only=True)
class Refusing(AlgoConfig):
    def __post_init__(self) -> None:
        raise TypeError("no default suits")


class Renamed(AlgoConfig):
    """Changes nothing, so it needs no decorator."""


@dataclass(kw_only=True)
class Odd(AlgoConfig):
    values: set[int] = None  # type: ignore[assignment]


@dataclass(kw_only=True)
class Required(AlgoConfig):
    steps: int


def made_in_a_function() -> type[AlgoConfig]:
    class Local(AlgoConfig): ...

    return Local


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (Bare, r"Bare has no @dataclass\(kw_only=True\) above it, so that its steps could not be set"),
        (Odd, r"a field values that cannot be: Unexpected type annotation: set\[int\]"),
        (Required, "needs a default.*'steps'"),
        (Refusing, r"Refusing\(\) failed: TypeError: no default suits \(.*test_user_code\.py:\d+\)$"),
        (made_in_a_function(), "is made in a function"),
        (int, "is the class int, but must be a dataclass that builds on pipeline.AlgoConfig"),
        (AlgoConfig(), "must be a dataclass that builds on"),
    ],
    ids=["no decorator", "type", "no default", "code", "in a function", "class", "object"],
)
def test_settings_that_a_worker_could_not_rebuild_are_refused(schema: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_settings_class("algos.X.class_path=m.X", schema, AlgoConfig)


class Configured(Algorithm):
    config_class = Required


class Steered(QSharp):
    config_class = Renamed


class Sums(Addition):
    config_class = DatasetConfig


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["algos.X.class_path=examples.fudge.Fudge", "algos.X.sucess=1"], "Did you mean 'algos.X.success'"),
        ([f"algos.X.class_path={__name__}.Configured"], "needs a default"),
        (
            [f"algos.X.class_path={__name__}.Steered"],
            "its config_class Renamed does not build on QSharpConfig, the settings of QSharp",
        ),
        (
            [f"datasets.x.class_path={__name__}.Sums"],
            "DatasetConfig does not build on AdditionConfig, the settings of Addition",
        ),
        (["datasets.x.class_path=pathlib.Path"], "is no Dataset: it has no config_class"),
        (
            ["datasets.x.class_path=examples.sorting.Sorting", "datasets.x.digitz=1"],
            "Did you mean 'datasets.x.dig",
        ),
        (["datasets.srting.digits=1"], "For one of your own add datasets.srting.class_path=my_module.MyClass"),
    ],
)
def test_wrong_settings_of_own_code_are_explained(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        quick_config([NAME, *overrides])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


ALGO_FILE = """# @package algos.Fudge
enabled: true
class_path: examples.fudge.Fudge
success: 0.25
"""
DATASET_FILE = """# @package datasets.sorting
class_path: examples.sorting.Sorting
digits: 4
"""


@pytest.fixture
def own_files(tmp_path: Path) -> str:
    for name, content in [("algos/Fudge", ALGO_FILE), ("dataset/sorting", DATASET_FILE)]:
        (tmp_path / f"{name}.yaml").parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.yaml").write_text(content)
    return f"hydra.searchpath=[file://{tmp_path}]"


def test_own_code_in_configuration_files(own_files: str) -> None:
    chosen = [own_files, "algos=[PITA,Fudge]", "dataset=sorting"]
    config = load_config([NAME, *chosen])
    assert [name for name, algo in config.algos.items() if algo.enabled] == ["PITA", "Fudge"]
    assert (config.algos["Fudge"].success, config.algos["Fudge"].eta) == (0.25, 1.0)  # type: ignore[attr-defined]
    assert (config.datasets["sorting"].kind, config.datasets["sorting"].test_size) == ("sorting", 2000)
    config = load_config([NAME, *chosen, "algos.Fudge.success=0.75", "+algos.Fudge.eta=2"])
    assert (config.algos["Fudge"].success, config.algos["Fudge"].eta) == (0.75, 2.0)  # type: ignore[attr-defined]
