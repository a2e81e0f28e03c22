"""Code of the user's own: how it is found, and what is said where it is not."""

import importlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.config.schema import AlgoConfig, DatasetConfig
from pipeline.config.user_code import (
    check_settings_class,
    check_unchanged,
    find_module,
    import_object,
    reached_hash,
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
        ("x = {}\ny = x['a']\n", "KeyError: 'a'"),
        ("import json\njson.loads('{')\n", "JSONDecodeError"),
        ("import sys\nsys.exit('no')\n", "SystemExit: no"),
        ("from pipeline.learning.algos.base import Stage\nStage()\n", "TypeError"),
    ],
    ids=["error", "in a library", "exit", "in the package"],
)
def test_an_error_inside_the_module_names_its_own_line(folder: Path, content: str, said: str) -> None:
    (folder / "own_broken.py").write_text(content)
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        import_object("own_broken.Thing")
    assert str(caught.value).endswith(f"({folder}/own_broken.py:2)")
    (folder / "own_wrong.py").write_text("x = 1\ndef f(:\n")
    with pytest.raises(ConfigError, match=r"own_wrong\.py.*line 2.*SyntaxError"):
        import_object("own_wrong.Thing")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("own_modul.Thing", "Did you mean 'own_module'?"),
        ("own_module.Thin", "Did you mean 'Thing'?"),
        ("own_module.Thing.Inner", "Write own_module:Thing.Inner"),
        ("./own_package/things.py", "this is no dotted path"),
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


@pytest.mark.parametrize("inside", ["own_top", "own_top/deep", "own_top/deep/deeper"])
def test_code_counts_in_folders_that_say_not_that_they_are_packages(folder: Path, inside: str) -> None:
    (folder / inside).mkdir(parents=True)
    (folder / "own_reward.py").write_text(f"from {inside.replace('/', '.')}.parts import Thing\n")
    seen = set()
    for _ in range(2):
        for text in ("Thing = 1\n", "Thing = 2\n"):
            (folder / inside / "parts.py").write_text(text)
            seen.add(source_hash("own_reward.Thing"))
            source_hash.cache_clear()
        (folder / "own_top/__init__.py").touch()  # a package, with folders in it that are none
        importlib.invalidate_caches()
    assert len(seen) == 4


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
    config = quick_config([NAME, *chosen])
    assert [name for name, algo in config.algos.items() if algo.enabled] == ["PITA", "Fudge"]
    assert (config.algos["Fudge"].success, config.algos["Fudge"].eta) == (0.25, 1.0)  # type: ignore[attr-defined]
    assert (config.datasets["sorting"].kind, config.datasets["sorting"].test_size) == ("sorting", 2000)
    config = quick_config([NAME, *chosen, "algos.Fudge.success=0.75", "+algos.Fudge.eta=2"])
    assert (config.algos["Fudge"].success, config.algos["Fudge"].eta) == (0.75, 2.0)  # type: ignore[attr-defined]


FILES = {
    "mine": """
import helpers
import tables as known
from package.inner import weigh
from package import inner as within
import json

LIMIT = 3
OTHER = 4

def unused():
    return OTHER

def reward(completions, **_):
    \"\"\"Say something.\"\"\"
    from lazy import late
    return [helpers.points(text) + late(text) + weigh(text) + known.TABLE["a"] + LIMIT for text in completions]
""",
    "helpers": """
from package import *

def points(text):
    return len(text) + base()

def idle():
    return 1
""",
    "tables": "TABLE = {'a': 1}\nTABLE['b'] = 2\nUNUSED = 1\n",
    "lazy": "def late(text):\n    return 5\n",
    "package": "from .inner import base\n",
    "package.inner": """
from ..tables_not_there import x

def base():
    return 7

def weigh(text):
    return 8
""",
    "apart": "NOTHING = 0\n",
}
BRANCH = "try:\n    import helpers as h\nexcept ImportError:\n    h = None"


def files_in(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / (name.replace(".", "/") + ("/__init__.py" if name == "package" else ".py"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def hashed(folder: Path, name: str = "reward", module: str = "mine") -> str | None:
    def find(module: str, further: Sequence[str]) -> Path | None:
        paths = [Path(each, module.replace(".", "/")) for each in [str(folder), *further]]
        ways = [way for path in paths for way in (path / "__init__.py", path.with_suffix(".py"))]
        return next((one for one in ways if one.is_file()), None)

    return reached_hash(module, name, find)


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("mine", "LIMIT = 3", "LIMIT = 2"),
        ("helpers", "len(text) +", "len(text) -"),
        ("tables", "'a': 1", "'a': 2"),
        ("tables", "['b'] = 2", "['b'] = 3"),
        ("lazy", "return 5", "return 6"),
        ("package.inner", "return 8", "return 80"),
        ("package", "import base", "import base as based"),
    ],
)
def test_what_is_reached_counts(tmp_path: Path, module: str, old: str, new: str) -> None:
    files_in(tmp_path, FILES)
    before = hashed(tmp_path)
    assert old in FILES[module]
    files_in(tmp_path, {module: FILES[module].replace(old, new)})
    assert hashed(tmp_path) != before


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("mine", "OTHER = 4", "OTHER = 5"),
        ("mine", "Say something.", "Say something else."),
        ("mine", "LIMIT = 3", "LIMIT  =  3  # three"),
        ("helpers", "    return 1", "    return 2"),
        ("tables", "UNUSED = 1", "UNUSED = 2"),
        ("apart", "0", "1"),
    ],
)
def test_what_is_not_reached_changes_nothing(tmp_path: Path, module: str, old: str, new: str) -> None:
    files_in(tmp_path, FILES)
    before = hashed(tmp_path)
    assert old in FILES[module]
    files_in(tmp_path, {module: FILES[module].replace(old, new)})
    assert hashed(tmp_path) == before


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        ("def f():\n    return globals()['g']()\n\ndef g():\n    return 1\n", "return 1", "return 2"),
        ("import helpers\ncall = helpers\n\ndef f():\n    return call.idle()\n", "idle", "points"),
        ("@register\ndef g():\n    return 1\n\ndef f():\n    return 0\n", "return 1", "return 2"),
        ("if True:\n    LIMIT = 1\n\ndef f():\n    return LIMIT\n", "LIMIT = 1", "LIMIT = 2"),
        ("LIMIT = 1\nLIMIT += 1\n\ndef f():\n    return LIMIT\n", "+= 1", "+= 2"),
        (
            "class A:\n    x = 1\n\nclass B(A):\n    def f(self):\n        return self.x\n\nf = B().f\n",
            "x = 1",
            "x = 2",
        ),
        ("import helpers\nhelpers.LIMIT = 1\n\ndef f():\n    return 1\n", "LIMIT = 1", "LIMIT = 2"),
        ("A, (B, *C) = 1, (2, 3)\n\ndef f():\n    return C\n", "3", "4"),
        ("def f():\n    return 1\n\nf = f\nf.weight = 1\n", "weight = 1", "weight = 2"),
        (
            f"{BRANCH}\n\ndef f():\n    return h.points('a')\n",
            "points",
            "idle",
        ),
        ("def f(:\n", ":", "::"),
        (
            "class A:\n    pass\n\nclass B(A):\n    x = 1\n\ndef f():\n    return A.__subclasses__()[0].x\n",
            "x = 1",
            "x = 2",
        ),
        (
            "class A:\n    known = {}\n\n    def __init_subclass__(cls):\n        A.known[cls.__name__] = cls\n\n"
            "class B(A):\n    x = 1\n\ndef f():\n    return A.known['B'].x\n",
            "x = 1",
            "x = 2",
        ),
        (
            "import sys\n\ndef g():\n    return 1\n\ndef f():\n    return sys.modules['odd'].g()\n",
            "return 1",
            "return 2",
        ),
        ("class A:\n    'Judge this.'\n\ndef f():\n    return A.__doc__\n", "this", "that"),
        ("def g():\n    return 1\n\ndef __getattr__(name):\n    return g\n", "return 1", "return 2"),
    ],
)
def test_ways_of_reaching_other_code(tmp_path: Path, text: str, old: str, new: str) -> None:
    files_in(tmp_path, {**FILES, "odd": text})
    before = hashed(tmp_path, "f", "odd")
    files_in(tmp_path, {"odd": text.replace(old, new)})
    assert hashed(tmp_path, "f", "odd") != before
    assert before is not None


@pytest.mark.parametrize(
    "text",
    [
        f"{BRANCH}\n\ndef f():\n    return h.points('a')\n",
        "import importlib\n\ndef f():\n    return importlib.import_module('helpers').points('a')\n",
        "import pydoc\nNAME = 'helpers.points'\n\ndef f():\n    return pydoc.locate(NAME)('a')\n",
        "class A:\n    import helpers as h\n    def g(self):\n        return self.h.points('a')\n\nf = A().g\n",
        "import sys\nsys.path.append('more')\nfrom aside import handed\n\ndef f():\n    return handed('a')\n",
        "from more import aside\n\ndef f():\n    return aside.handed('a')\n",
        "import more.aside\n\ndef f(name):\n    return getattr(more.aside, name)('a')\n",
        "from importlib import import_module as load\n\ndef f(name):\n    return load(name).points('a')\n",
        "import importlib\n\ndef f(name):\n    return importlib.import_module(f'more.{name}').handed('a')\n",
        "import runpy\n\ndef f(name):\n    return runpy.run_path(f'more/{name}.py')['handed']('a')\n",
        "import os\n\ndef f(text):\n    return os.popen(f'python -m more.aside {text}').read()\n",
    ],
)
def test_a_helper_counts_however_it_is_imported(tmp_path: Path, text: str) -> None:
    files_in(tmp_path, {**FILES, "odd": text, "more.aside": "from helpers import points as handed\n"})
    before = hashed(tmp_path, "f", "odd")
    files_in(tmp_path, {"helpers": FILES["helpers"].replace("len(text) +", "len(text) -")})
    assert hashed(tmp_path, "f", "odd") != before


def test_modules_that_import_each_other_end(tmp_path: Path) -> None:
    files_in(
        tmp_path,
        {
            "one": "import two\n\ndef f():\n    return two.g()\n",
            "two": "import one\n\ndef g():\n    return one.f\n",
        },
    )
    assert hashed(tmp_path, "f", "one") is not None


def test_what_describes_a_module_or_is_run_as_a_program_changes_nothing(tmp_path: Path) -> None:
    files_in(tmp_path, {"mine": "def reward(of):\n    return of\n"})
    before = hashed(tmp_path)
    text = "'Judges.'\n\n\ndef reward(of):\n    return of\n\n\nif __name__ == '__main__':\n    print(reward(1))\n"
    files_in(tmp_path, {"mine": text})
    assert hashed(tmp_path) == before


def test_what_is_not_the_users_own_has_none(tmp_path: Path) -> None:
    assert hashed(tmp_path, "floor", "math") is None


READING = """
import os
from pathlib import Path

WORDS = [*open(f"{Path(__file__).parent / 'data'}/words.txt")]
LIMIT = float(os.getenv("LIMIT_OF_MINE", "1"))

def reward(completions, **_):
    return [LIMIT * (text in WORDS) for text in completions]
"""


def test_data_and_variables_that_a_module_names_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files_in(tmp_path, {"mine": READING})
    (tmp_path / "data").mkdir()
    seen = [hashed(tmp_path)]
    for text in ("one", "two"):
        (tmp_path / "data/words.txt").write_text(text)
        seen.append(hashed(tmp_path))
    (tmp_path / "data/other.txt").write_text("no")
    assert hashed(tmp_path) == seen[-1]
    monkeypatch.setenv("LIMIT_OF_MINE", "2")
    assert len({*seen, hashed(tmp_path)}) == 4


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("import sqlite3\n\ndef reward(of):\n    return sqlite3.connect('facts.db')\n", "facts.db"),
        ("from paths import WORDS\n\ndef reward(of):\n    return open(WORDS)\n", "words.txt"),
        (
            "from paths import DATA\n\ndef reward(of):\n    return open(DATA / 'en' / 'words.txt')\n",
            "data/en/words.txt",
        ),
        (
            "import os\n\ndef reward(of):\n    return open(os.path.join('data', 'en', 'words.txt'))\n",
            "data/en/words.txt",
        ),
        ("def reward(of):\n    return open('%s/words.txt' % PLACE, 'rb')\nPLACE = 'data'\n", "data/words.txt"),
        (f"def reward(of):\n    return open(b'{'d' * 80}/words.txt')\n", f"{'d' * 80}/words.txt"),
        ("def reward(of):\n    return Judge.from_pretrained('judge')\n", "judge/model.safetensors"),
        ("import subprocess\n\ndef reward(of):\n    subprocess.run(['node', 'score.js'])\n", "score.js"),
        ("import glob\n\ndef reward(of):\n    return glob.glob('data/*.txt')\n", "data/words.txt"),
        ("import os\n\ndef reward(of):\n    return os.listdir('data/en')\n", "data/en/words.txt"),
        ("def reward(of, lang='en'):\n    return open(f'data/{lang}.txt')\n", "data/en.txt"),
        ("def reward(of, lang='en'):\n    return open('data/%s.txt' % lang)\n", "data/en.txt"),
        ("def reward(of, lang='en'):\n    return open('data/{:s}.txt'.format(lang))\n", "data/en.txt"),
        ("def reward(of, lang='en'):\n    return open('data/' + lang + '.txt')\n", "data/en.txt"),
        ("import os\n\ndef reward(of):\n    return open(os.environ['PLACE_OF_MINE'] + '/words')\n", "data/words"),
        ("import os\n\ndef reward(of):\n    return os.listdir(os.environ['PLACE_OF_MINE'])\n", "data/a.txt"),
        (
            "def reward(of):\n    return open(Path(HERE, 'a', 'b', 'c', 'words.txt'))\nHERE = '.'\n",
            "a/b/c/words.txt",
        ),
        ("def reward(of):\n    return open(Path(__file__).with_suffix('.txt'))\n", "mine.txt"),
        ("def reward(of):\n    return open(Path.home() / 'words.txt')\n", "home/words.txt"),
        ("def reward(of):\n    return resources.read_text('kit.data', 'words.txt')\n", "kit/data/words.txt"),
    ],
)
def test_files_count_whatever_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, file: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACE_OF_MINE", "data")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    files_in(tmp_path, {"mine": text, "paths": "WORDS = 'words.txt'\nDATA = ROOT / 'data'\nROOT = '.'\n"})
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).with_name("config.json").write_text("{}")
    seen = set()
    for content in ("one", "two"):
        (tmp_path / file).write_text(content)
        seen.add(hashed(tmp_path))
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("used", "count"),
    [
        ("pass", 1),
        ("print(reward.__doc__)", 3),
        ("print(getattr(reward, '__doc__'))", 3),
        ("getsource(reward)", 3),
    ],
)
def test_what_docstrings_speak_of_counts_where_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: str, count: int
) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"'Judge as notes.md says.'\n\ndef reward(of):\n    'Read notes.md first.'\n    {used}\n    return of\n"
    files_in(tmp_path, {"mine": text})
    seen = {hashed(tmp_path)}
    for content in ("one", "two"):
        (tmp_path / "notes.md").write_text(content)
        seen.add(hashed(tmp_path))
    assert len(seen) == count


def test_the_current_folder_counts_only_where_it_has_what_a_module_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    other.mkdir()
    files_in(own, {"mine": "def reward(of):\n    return open('words.txt')\n"})
    (own / "words.txt").write_text("one")
    seen = []
    for folder in (own, other):
        monkeypatch.chdir(folder)
        seen.append(hashed(own))
    (other / "words.txt").write_text("one")
    assert {*seen, hashed(own)} == {seen[0]}
    (other / "words.txt").write_text("two")
    assert hashed(own) != seen[0]  # which the module would read


@pytest.mark.parametrize("place", ["outputs", "outputs/inner"])
def test_what_runs_leave_in_a_folder_that_a_text_names_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "import os\n\ndef reward(of):\n    print('no outputs')\n    return os.listdir('words')\n"
    files_in(tmp_path, {"mine": text})
    words, run = tmp_path / "words/deep", tmp_path / place / "t/2026-01-02_03-04-05"
    words.mkdir(parents=True)
    (words / "a.txt").write_text("one")
    before = hashed(tmp_path)
    (run / "jobs").mkdir(parents=True)
    (run.parent / "latest").symlink_to(run.name)
    for file in ("plan.json", "jobs/job.log"):
        (run / file).write_text("")
    seen = {before, hashed(tmp_path)}  # with a store elsewhere
    (tmp_path / place / ".store").mkdir()
    (tmp_path / place / "t/study.log").write_text("")
    assert {*seen, hashed(tmp_path)} == {before}
    (run / "plan.json").unlink()  # one that only begins
    assert hashed(tmp_path) == before
    (words / "a.txt").write_text("two")
    assert hashed(tmp_path) != before


def test_data_beside_a_store_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files_in(tmp_path, {"mine": "import os\n\ndef reward(of):\n    return [*os.walk('outputs')]\n"})
    seen = set()
    for file in (".store/aa/output", "words/a.txt", "b.txt"):
        (tmp_path / "outputs" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "outputs" / file).write_text("")
        seen.add(hashed(tmp_path))
    assert len(seen) == 3


def test_all_counts_of_a_model_that_a_library_reads_with_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files_in(tmp_path, {"mine": "def reward(of):\n    return SentenceTransformer('judge')\n"})
    (tmp_path / "judge/0_Transformer").mkdir(parents=True)
    (tmp_path / "judge/modules.json").write_text("[]")
    before = hashed(tmp_path)
    (tmp_path / "judge/0_Transformer/model.safetensors").write_text("")
    assert hashed(tmp_path) != before


@pytest.mark.parametrize(
    ("text", "name", "counts"),
    [
        ("from os import getenv as g\n\ndef reward(of):\n    return g('LIMIT_OF_MINE')\n", "LIMIT_OF_MINE", True),
        ("import os\nN = 'MAX_TOKENS'\n\ndef reward(of):\n    return os.environ.pop(N)\n", "MAX_TOKENS", True),
        ("import os\n\ndef reward(of):\n    return os.environ.get('MY_API_KEY')\n", "MY_API_KEY", False),
        (
            "import os\n\ndef reward(of):\n    return os.environ['CUDA_VISIBLE_DEVICES']\n",
            "CUDA_VISIBLE_DEVICES",
            False,
        ),
        ("import os\n\ndef reward(of):\n    return os.getenv('LORA_RANK')\n", "LORA_RANK", True),
        ("import os\n\ndef reward(of):\n    return [*filter('MKL_'.__eq__, os.environ)]\n", "MKL_CBWR", False),
        ("import os\n\ndef reward(of):\n    return os.getenv(f'{of}_LIMIT')\n", "MINE_LIMIT", True),
        ("import os\n\ndef reward(of):\n    return [k for k in os.environ if k[:5] == 'MINE_']\n", "MINE_A", True),
        (
            "import os\n\ndef reward(of):\n    open(os.getenv('LOG_OF_MINE'), 'a').write(of)\n",
            "LOG_OF_MINE",
            False,
        ),
        (
            "class Own(BaseSettings):\n    mine_max: int\n\ndef reward(of):\n    return Own().mine_max\n",
            "MINE_MAX",
            True,
        ),
    ],
)
def test_variables_count_but_for_those_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str, counts: bool
) -> None:
    files_in(tmp_path, {"mine": text})
    seen = set()
    for value in ("1", "2"):
        monkeypatch.setenv(name, value)
        seen.add(hashed(tmp_path))
    assert (len(seen) == 2) == counts


@pytest.mark.parametrize("at", [".", ".."])
@pytest.mark.parametrize(
    "text",
    [
        "load_dotenv()\n\ndef reward(of):\n    return os.getenv('LIMIT_OF_MINE'), os.getenv('MY_API_KEY')\n",
        "CONFIG = dotenv_values('.env')\n\ndef reward(of):\n    return CONFIG['LIMIT_OF_MINE']\n",
        "class Own(BaseSettings, env_file='.env'):\n    limit_of_mine: int\n\ndef reward(of):\n    return Own()\n",
    ],
)
def test_variables_of_a_file_for_them_count(tmp_path: Path, text: str, at: str) -> None:
    own = tmp_path / "own"
    files_in(own, {"mine": text})
    seen = []
    for limit, key in (("1", "a"), ("1", "b"), ("2", "b")):
        (own / at / ".env").write_text(f"# mine\nexport LIMIT_OF_MINE='{limit}'\nMY_API_KEY={key}\nOTHER={key}\n")
        seen.append(hashed(own))
    assert seen[0] == seen[1] != seen[2]


WRITING = """
SEEN = 'seen.txt'

def log(what, place):
    with open(place, mode="a") as file:
        print(what, file=file)

class Log:
    def __init__(self, place):
        self.place = place
    def add(self, what):
        self.place.touch()
"""


@pytest.mark.parametrize(
    "text",
    [
        "import logging\nlogging.basicConfig(level='INFO')\n",
        "from paths import log\nlog('begun', 'seen.txt')\n",
        "import sys\nsys.stdout.write('begun')\n",
        "import json\n\ndef keep(found):\n    json.dump(found, open('seen.txt', 'w'))\n",
        "import json\nFOUND = json.load(open('words.txt'))\njson.dump(FOUND, open('seen.txt', 'w'))\n",
        "import sqlite3\nsqlite3.connect('seen.txt').execute('INSERT INTO t VALUES (1)')\n",
    ],
)
def test_what_a_module_reads_counts_beside_what_it_writes(tmp_path: Path, text: str) -> None:
    own = f"{text}\ndef reward(of, file='words.txt'):\n    return open(file).read()\n"
    files_in(tmp_path, {"mine": own, "paths": WRITING})
    seen = set()
    for content in ("one", "two"):
        (tmp_path / "words.txt").write_text(content)
        seen.add(hashed(tmp_path))
    assert len(seen) == 2


@pytest.mark.parametrize(
    "text",
    [
        "def reward(completions, **_):\n    open('seen.txt', 'a').write(completions[0])\n    return [1.0]\n",
        "def reward(completions, **_):\n    print(completions, file=open('seen.txt', 'a'))\n    return [1.0]\n",
        "import logging\nlogging.basicConfig(filename='seen.txt')\n\ndef reward(of):\n    return of\n",
        "import sqlite3\n\ndef reward(of):\n    sqlite3.connect('seen.txt').execute('INSERT INTO t VALUES (1)')\n",
        "import sqlite3\nC = sqlite3.connect('seen.txt')\n\ndef reward(of):\n    C.execute('replace into t')\n",
        "from loguru import logger\nlogger.add('seen.txt')\n\ndef reward(of):\n    return of\n",
        "from logging.config import dictConfig\ndictConfig({'filename': 'seen.txt'})\n\ndef reward(of): ...\n",
        "from paths import log\n\ndef reward(of):\n    log(of, 'seen.txt')\n",
        "import paths\nLOG = paths.Log('seen.txt')\n\ndef reward(of):\n    LOG.add(of)\n",
        "import paths\n\ndef reward(of):\n    with open(paths.SEEN, 'a') as file:\n        file.write(of)\n",
        "import os\nos.environ['LIMIT_OF_MINE'] = '1'\n\ndef reward(completions, **_):\n    return [1.0]\n",
        "import os\nKEY = os.environ.get('MY_API_KEY')\n\ndef reward(completions, **_):\n    return [KEY]\n",
        "def reward(completions, **_):\n    return [len(open('/proc/self/stat').read()) * 0.0]\n",
    ],
)
def test_what_a_module_writes_or_is_let_in_by_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    files_in(tmp_path, {"mine": text, "paths": WRITING})
    before = hashed(tmp_path)
    (tmp_path / "seen.txt").write_text("a")
    for name in ("LIMIT_OF_MINE", "MY_API_KEY"):
        monkeypatch.setenv(name, "2")
    assert hashed(tmp_path) == before
