"""Code of the user's own: how it is found, and what is said where it is not."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.config.bases import AlgoConfig, DatasetConfig
from pipeline.config.load import load_config
from pipeline.config.user_code import (
    check_settings_class,
    check_unchanged,
    find_module,
    import_object,
    source_hash,
)
from pipeline.errors import ConfigError, JobError
from pipeline.learning.algos.base import Algorithm
from pipeline.learning.algos.qsharp import QSharp, QSharpConfig
from pipeline.learning.choices import HeadType
from pipeline.learning.datasets.made import Addition
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


def test_modules_of_the_current_folder_are_found_last(folder: Path) -> None:
    (folder / "own_one.py").write_text("class Thing:\n    class Inner: pass\n")
    (folder / "json.py").write_text("raise ValueError('taken for the library')\n")
    assert import_object("own_one.Thing").__name__ == "Thing"
    assert import_object("own_one:Thing.Inner").__name__ == "Inner"
    assert sys.path[-1] == str(folder)
    assert sys.path.count(str(folder)) == 1


def test_folders_without_an_init_file_are_packages(folder: Path) -> None:
    (folder / "own_folder").mkdir()
    (folder / "own_folder" / "things.py").write_text("Thing = 3\n")
    assert import_object("own_folder.things.Thing") == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("import no_such_library\n", ":1 (import no_such_library): ModuleNotFoundError: No module named"),
        ("x = {}\ny = x['a']\n", ":2 (y = x['a']): KeyError: 'a'"),
        ("import json\njson.loads('{')\n", ":2 (json.loads('{')): JSONDecodeError"),
        ("x = 1\ndef f(:\n", ":2 (def f(:): SyntaxError: invalid syntax"),
        ("import sys\nsys.exit('no')\n", ":2 (sys.exit('no')): SystemExit: no"),
        ("from pipeline.learning.algos.base import Stage\nStage()\n", ":2 (Stage()): TypeError"),
    ],
    ids=["import", "error", "in a library", "syntax", "exit", "in the package"],
)
def test_an_error_inside_the_module_names_its_own_line(folder: Path, content: str, said: str) -> None:
    (folder / "own_broken.py").write_text(content)
    with pytest.raises(ConfigError) as caught:
        import_object("own_broken.Thing")
    assert str(caught.value).startswith(f"cannot import 'own_broken.Thing': {folder}/own_broken.py{said}")


def test_an_error_in_a_module_that_it_imports_names_that_one(folder: Path) -> None:
    (folder / "own_main.py").write_text("import own_helper\n")
    (folder / "own_helper.py").write_text("\n1 / 0\n")
    with pytest.raises(ConfigError, match=r"own_helper\.py:2 \(1 / 0\): ZeroDivisionError"):
        import_object("own_main.Thing")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("own_modul.Thing", "there is no module 'own_modul' in "),
        ("own_modul.Thing", "Did you mean 'own_module'? Start the command in the folder that holds it, or name"),
        ("own_package.thngs.Thing", "there is no module 'thngs' in {folder}/own_package. Did you mean 'things'?"),
        (
            "own_module.Thin",
            "{folder}/own_module.py has no 'Thin'. Did you mean 'Thing'? It defines Thing, other.",
        ),
        ("own_module:Thing.Iner", "has no 'Iner'"),
        ("own_module.Thing.Inner", "'own_module' is a module ({folder}/own_module.py)"),
        ("tests.doubles.models.py", "Write tests.doubles.models.NAME, NAME being what you have defined there."),
        ("own_module.py.Thing", "name a module, not a file. Write own_module.Thing."),
        ("own_module.py:Thing", "name a module, not a file. Write own_module:Thing."),
        (
            "own_module.py",
            "name a module, not a file. Write own_module.NAME, NAME being what you have defined there.",
        ),
        ("own_module", "Write own_module.NAME, NAME being what you have defined there."),
        ("./own_package/things.py", "Write own_package.things.NAME, NAME being what you have defined there."),
        ("{folder}/own_package/things.py:Thing", "Write own_package.things:Thing."),
        (
            "../elsewhere/own.py:f",
            "Write own:f; and start the command in ../elsewhere, or name that folder in PYTH",
        ),
        ("own-module.Thing", "Write own_module.Thing; a module's name can have no '-', so rename the file or"),
        ("own_module.Thing.Inner", "For a name inside a class write own_module:Thing.Inner."),
        ("own module/thing.py", "Write my_package.my_module.MyName, or"),
        ("own module.Thing", "this is no dotted path"),
        ("Thing", "this is no dotted path"),
        ("own_module.", "this is no dotted path"),
        ("__main__.Thing", "workers do not run your script again"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(folder: Path, path: str, said: str) -> None:
    (folder / "own_module.py").write_text("from pathlib import Path\nclass Thing: pass\ndef other(): pass\n")
    (folder / "own_package").mkdir()
    (folder / "own_package" / "things.py").touch()
    with pytest.raises(ConfigError) as caught:
        import_object(path := path.format(folder=folder))
    message = str(caught.value)
    assert message.startswith(f"cannot import '{path}': ")
    assert said.format(folder=folder) in message
    assert "\n" not in message


def test_a_package_that_another_of_its_name_hides_is_pointed_out(folder: Path) -> None:
    """A folder without ``__init__.py`` comes after any package of its name, wherever that is."""
    for place, name in [("first", "mine.py"), ("second", "theirs.py")]:
        (folder / place / "own_lab").mkdir(parents=True)
        (folder / place / "own_lab" / name).touch()
    (folder / "second" / "own_lab" / "__init__.py").touch()
    sys.path += [str(folder / "first"), str(folder / "second")]
    with pytest.raises(ConfigError) as caught:
        import_object("own_lab.mine.Thing")
    assert f"{folder}/first/own_lab holds one, but has no __init__.py and so comes second" in str(caught.value)


def test_a_module_is_found_without_being_run(folder: Path) -> None:
    (folder / "own_loud.py").write_text("raise ValueError\n")
    assert find_module("own_loud.reward").origin == str(folder / "own_loud.py")
    with pytest.raises(ConfigError, match="there is no module 'own_silent'"):
        find_module("own_silent.reward")
    with pytest.raises(ConfigError, match="there is no module 'more'"):
        find_module("json.more.reward")
    with pytest.raises(ConfigError, match="'math' is a module"):
        find_module("math.more.reward")


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
        "from pipeline.plan.versions import import_warnings\n"
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


@dataclass(kw_only=True)
class Worded(QSharpConfig):
    eta: str = "strong"  # type: ignore[assignment]


@dataclass(kw_only=True)
class Rated(AlgoConfig):
    enabled: float = 1.0  # type: ignore[assignment]


@dataclass(kw_only=True)
class Listed(DatasetConfig):
    rewards: dict[str, str] = field(default_factory=dict)  # type: ignore[assignment]


@dataclass(kw_only=True)
class Narrowed(QSharpConfig):
    eta: int = 1
    memory_mb: int = 100
    head: HeadType = HeadType.q
    options: dict[str, int] = field(default_factory=dict)


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
        (Worded, "Worded has a field eta of type str, which in QSharpConfig is of type float; keep that type"),
        (Rated, "Rated has a field enabled of type float, which in AlgoConfig is of type bool"),
        (made_in_a_function(), "is made in a function"),
        (int, "is the class int, but must be a dataclass that builds on pipeline.AlgoConfig"),
        (AlgoConfig(), "must be a dataclass that builds on"),
    ],
    ids=["no decorator", "type", "no default", "code", "text", "number", "in a function", "class", "object"],
)
def test_settings_that_a_worker_could_not_rebuild_are_refused(schema: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_settings_class("algos.X.class_path=m.X", schema, AlgoConfig)


def test_a_table_of_another_type_is_refused() -> None:
    said = r"a field rewards of type dict\[str, str\], which in DatasetConfig is of type dict\[str, float\]"
    with pytest.raises(ConfigError, match=said):
        check_settings_class("datasets.x.class_path=m.X", Listed, DatasetConfig)


def test_a_narrower_type_is_fine() -> None:
    check_settings_class("algos.X.class_path=m.X", Narrowed, AlgoConfig)


def test_settings_that_change_nothing_are_fine() -> None:
    check_settings_class("algos.X.class_path=m.X", Renamed, AlgoConfig)


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
        (
            ["algos.X.class_path=examples.fudge.Fudge", "algos.X.success=hi"],
            "algos.X.success=hi: must be a number",
        ),
        (["algos.X.class_path=examples.fudge.FudgeConfig"], "is no Algorithm: it has no config_class"),
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
        (["datasets.gsm8k.path=x"], "the run has no dataset 'gsm8k'. Choose it with dataset=gsm8k"),
    ],
)
def test_wrong_settings_of_own_code_are_explained(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        quick_config([NAME, *overrides])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("Fudge", "examples.fudge.Fudge"),
        ("My-Fudge", "examples.fudge:Fudge"),
        ("fudge_2", "'examples.fudge.Fudge'"),
    ],
)
def test_own_settings_of_an_algorithm(name: str, path: str) -> None:
    config = load_config([NAME, f"algos.{name}.class_path={path}", f"algos.{name}.success=0.5"])
    algo = config.algos[name]
    assert type(algo).__name__ == "FudgeConfig"
    assert algo.success == 0.5  # type: ignore[attr-defined]
    assert algo.enabled


def test_free_settings_of_an_algorithm_and_a_dataset() -> None:
    overrides = [
        "algos.Taught.class_path=examples.taught.Taught",
        "algos.Taught.options.column=answer",
        "dataset=[]",
        "datasets.mine.class_path=examples.sorting.Sorting",
        "datasets.mine.options.hard=true",
        "datasets.mine.digits=4",
        "datasets.mine.rewards={examples.near_miss.near_miss: 1.0, exact_match: 0.5}",
        "datasets.mine.grading.options={examples.near_miss.near_miss: {power: 2}}",
    ]
    config = load_config([NAME, *overrides])
    assert config.algos["Taught"].options == {"column": "answer"}
    assert list(config.datasets) == ["mine"]
    mine = config.datasets["mine"]
    assert (mine.kind, mine.digits, mine.options) == ("mine", 4, {"hard": True})  # type: ignore[attr-defined]
    assert mine.rewards == {"examples.near_miss.near_miss": 1.0, "exact_match": 0.5}
    assert mine.grading.options == {"examples.near_miss.near_miss": {"power": 2}}


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


def test_mistakes_in_configuration_files_of_own_code_are_explained(own_files: str, tmp_path: Path) -> None:
    chosen = [own_files, "algos=[PITA,Fudge]"]
    with pytest.raises(ConfigError, match=r"algos\.Fudge\.success=hi: must be a number"):
        load_config([NAME, *chosen, "algos.Fudge.success=hi"])
    (tmp_path / "algos" / "Fudge.yaml").write_text(ALGO_FILE.replace("success", "sucess"))
    with pytest.raises(ConfigError, match=r"'algos\.Fudge\.sucess'. Did you mean 'algos\.Fudge\.success'"):
        load_config([NAME, *chosen])


def test_a_module_of_ours_that_has_moved_is_no_near_name() -> None:
    with pytest.raises(
        ConfigError, match=r"no module 'pipeline\.algos'.* import what you need from pipeline itself"
    ):
        import_object("pipeline.algos.pita.PITA")
    with pytest.raises(ConfigError, match="Did you mean 'Algorithm'"):
        import_object("pipeline.Algoritm")


def test_own_code_that_imports_a_module_of_ours_that_has_moved_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_before.py").write_text("from pipeline.algos.base import Algorithm\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"of_before\.py:1.* import what you need from pipeline itself"):
        import_object("of_before.Algorithm")
