"""What of the user's own code a name reaches: an edit of that is another hash, and of nothing else."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pipeline.config.user_code import reached_hash

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
        ("mine", "+ LIMIT", "- LIMIT"),
        ("helpers", "len(text) +", "len(text) -"),
        ("tables", "'a': 1", "'a': 2"),
        ("tables", "['b'] = 2", "['b'] = 3"),
        ("lazy", "return 5", "return 6"),
        ("package.inner", "return 7", "return 70"),
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
        ("mine", "def unused():", "def unused(further=1):"),
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
        (
            "from functools import partial\n\ndef g(n):\n    return n\n\nf = partial(g, 1)\n",
            "return n",
            "return -n",
        ),
        ("def g():\n    return 1\n\ndef f(of=g):\n    return of()\n", "return 1", "return 2"),
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
            "import sys\n\ndef g():\n    return 1\n\ndef f():\n    return sys.modules['odd'].g()\n",
            "return 1",
            "return 2",
        ),
        ("class A:\n    'Judge this.'\n\ndef f():\n    return A.__doc__\n", "this", "that"),
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
    ids=[
        *("in a branch", "by name", "by a name elsewhere", "in a class", "from a further folder", "of a package"),
        *(
            "by a computed name of it",
            "by a computed name",
            "of a package by one",
            "by a computed path",
            "as a program",
        ),
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
            "import os\n\ndef reward(of):\n    return open(os.path.join('data', 'en', 'words.txt'))\n",
            "data/en/words.txt",
        ),
        ("def reward(of):\n    return open('%s/words.txt' % PLACE, 'rb')\nPLACE = 'data'\n", "data/words.txt"),
        (f"def reward(of):\n    return open(b'{'d' * 80}/words.txt')\n", f"{'d' * 80}/words.txt"),
        ("def reward(of):\n    return Judge.from_pretrained('judge')\n", "judge/model.safetensors"),
        ("import subprocess\n\ndef reward(of):\n    subprocess.run(['node', 'score.js'])\n", "score.js"),
    ],
    ids=["by a library", "named elsewhere", "two folders", "put in", "long", "a model", "a program"],
)
def test_files_count_whatever_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, file: str
) -> None:
    monkeypatch.chdir(tmp_path)
    files_in(tmp_path, {"mine": text, "paths": "WORDS = 'words.txt'\n"})
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).with_name("config.json").write_text("{}")
    seen = set()
    for content in ("one", "two"):
        (tmp_path / file).write_text(content)
        seen.add(hashed(tmp_path))
    assert len(seen) == 2


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
        ("import os\n\ndef reward(of):\n    return os.getenv('LOCAL_RANK')\n", "LOCAL_RANK", False),
        ("import os\n\ndef reward(of):\n    return os.environ['HOME'] + '/judge'\n", "HOME", False),
        ("import os\n\ndef reward(of):\n    return os.getenv('LORA_RANK')\n", "LORA_RANK", True),
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


@pytest.mark.parametrize(
    "text",
    [
        "def reward(completions, **_):\n    open('seen.txt', 'a').write(completions[0])\n    return [1.0]\n",
        "def reward(completions, **_):\n    print(completions, file=open('seen.txt', 'a'))\n    return [1.0]\n",
        "import logging\nlogging.basicConfig(filename='seen.txt')\n\ndef reward(of):\n    return of\n",
        "import sqlite3\n\ndef reward(of):\n    sqlite3.connect('seen.txt').execute('INSERT INTO t VALUES (1)')\n",
        "import os\nos.environ['LIMIT_OF_MINE'] = '1'\n\ndef reward(completions, **_):\n    return [1.0]\n",
        "import os\nKEY = os.environ.get('MY_API_KEY')\n\ndef reward(completions, **_):\n    return [KEY]\n",
        "def reward(completions, **_):\n    return [len(open('/proc/self/stat').read()) * 0.0]\n",
    ],
    ids=["written", "printed", "logged", "remembered", "set", "access", "of the machine"],
)
def test_what_a_module_writes_or_is_let_in_by_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    files_in(tmp_path, {"mine": text})
    before = hashed(tmp_path)
    (tmp_path / "seen.txt").write_text("a")
    for name in ("LIMIT_OF_MINE", "MY_API_KEY"):
        monkeypatch.setenv(name, "2")
    assert hashed(tmp_path) == before
