"""Code that is named by a dotted path, mostly the user's own: importing it, saying why that fails, what it uses.

The current folder comes last in `sys.path`, whatever script was started, and workers are given the same list.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass
from difflib import get_close_matches
from functools import cache
from glob import iglob
from importlib.machinery import ModuleSpec, PathFinder
from itertools import islice, product
from keyword import iskeyword
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from pipeline.errors import ConfigError, JobError, PipelineError, is_installed, own_place, told
from pipeline.files import file_sha256

_OURS = "pipeline"
_Answer = TypeVar("_Answer")


def import_object(path: str) -> Any:
    """Import ``package.module.Name`` or ``package.module:Name``.

    Raises:
        ConfigError: There is no such module or name, or the module fails while it is imported.
    """
    module, name = split_path(path)
    found: Any = _import_module(module, path)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(_no_such_name(path, module, part, found))
        found = getattr(found, part)
    return found


def split_path(path: str) -> tuple[str, str]:
    """The module and the name in it of a dotted path.

    Raises:
        ConfigError: It is no dotted path.
    """
    module, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    parts = [*module.split("."), *name.split(".")]
    if not all(part.isidentifier() and not iskeyword(part) for part in parts) or name == "py":
        how = "Write my_package.my_module.MyName, or my_package.my_module:Outer.Inner for a name inside a class"
        raise ConfigError(f"cannot import '{path}': this is no dotted path. {how}.")
    if parts[0] == "__main__":
        move = f"Move {name} to a module of its own and name that."
        raise ConfigError(f"cannot import '{path}': workers do not run your script again. {move}")
    return module, name


def find_module(path: str) -> ModuleSpec:
    """Find the module of a dotted path without running it; the packages around it are imported.

    Raises:
        ConfigError: There is no such module.
    """
    module, _ = split_path(path)
    _look_in_current_folder()
    parent = module.rpartition(".")[0]
    if parent:
        _import_module(parent, path)
    spec = importlib.util.find_spec(module) if not parent or hasattr(sys.modules[parent], "__path__") else None
    if spec is None:
        raise ConfigError(_no_such_module(path, module))
    return spec


def source_file(path: str) -> Path | None:
    """The Python file of a dotted path, or None where its module has none.

    Raises:
        ConfigError: There is no such module.
    """
    origin = find_module(path).origin
    return Path(origin) if origin is not None and origin.endswith(".py") and Path(origin).is_file() else None


@cache
def source_hash(path: str) -> str | None:
    """Hash of the code that a dotted path reaches in files of the user's own; None where it has no file.

    Comments and layout are not in it; see `reached_hash`. Of an installed module it is the file. Taken once in a
    process, as the module is imported once: an edit takes effect, and gives new keys, from the next start on.

    Raises:
        ConfigError: There is no such module.
    """
    file = source_file(path)
    if file is None:
        return None
    if found := reached_hash(*split_path(path), _own_file):
        return found
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _own_file(module: str, further: Sequence[str]) -> Path | None:
    """The file of a module that is not Python's, of an installed package or of this one; nothing is imported."""
    top, *inner = module.split(".")
    if top in {_OURS, *sys.stdlib_module_names}:
        return None
    _look_in_current_folder()
    try:
        spec = importlib.util.find_spec(top) or PathFinder.find_spec(top, further)
        for part in inner:  # a dotted name would need its parents imported where one has no __init__.py
            inside = spec.submodule_search_locations if spec else None
            spec = None if inside is None else PathFinder.find_spec(part, list(inside))
    except (ImportError, ValueError, KeyError):  # of a module that was made in memory, of none, of a folder's
        return None
    origin = None if spec is None else spec.origin
    if origin is None or not Path(origin).is_file() or is_installed(origin):
        return None
    # Packages of `pip --target` lie beside what says that they are installed.
    folder = Path(origin).parents[len(inner) + (Path(origin).name == "__init__.py")]
    return None if next(folder.glob("*.dist-info"), None) else Path(origin)


def check_unchanged(planned: Mapping[str, str | None]) -> None:
    """Refuse to run code that is not what the plan was made with.

    Args:
        planned: Dotted path -> `source_hash` in the engine.

    Raises:
        JobError: A file was changed since.
    """
    for path, expected in planned.items():
        if source_hash(path) != expected:
            again = "Run the same command again: what the change touches is made anew."
            raise JobError(
                f"{source_file(path)} was changed after this run had begun, or what it imports. {again}"
            )


def ask(owner: str, question: Callable[[], _Answer]) -> _Answer:
    """What code answers that may be the user's own, and so may fail in any way.

    Args:
        owner: What is asked, for messages.
        question: Asks it.

    Raises:
        ConfigError: It failed.
    """
    try:
        return question()
    except PipelineError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{owner} failed: {told(error)}") from error


def check_settings_class(owner: str, schema: object, base: type) -> None:
    """Refuse a class of settings that a worker could not rebuild.

    Args:
        owner: Dotted path of the class whose `config_class` it is.
        schema: The settings class.
        base: What it must build on.

    Raises:
        ConfigError: Says what is wrong with it.
    """
    wanted = f"a dataclass that builds on pipeline.{base.__name__}"
    if not (isinstance(schema, type) and issubclass(schema, base)):
        called = f"the class {schema.__qualname__}" if isinstance(schema, type) else repr(schema)
        raise ConfigError(f"{owner}: its config_class is {called}, but must be {wanted}")
    path = f"{schema.__module__}:{schema.__qualname__}"
    if "<locals>" in path:
        raise ConfigError(f"{owner}: its config_class {path} is made in a function, where workers cannot find it")
    fields = vars(schema).get("__annotations__", {})
    if not is_dataclass(schema) or (fields and "__dataclass_fields__" not in vars(schema)):
        lost = f"so that its {', '.join(fields)} could not be set"
        raise ConfigError(
            f"{owner}: its config_class {schema.__name__} has no @dataclass(kw_only=True) above it, {lost}"
        )
    from omegaconf import OmegaConf  # slow to import, and seldom needed
    from omegaconf.errors import OmegaConfBaseException

    try:
        OmegaConf.structured(schema())
    except OmegaConfBaseException as error:
        said = str(error).partition("\n")[0]
        raise ConfigError(
            f"{owner}: its config_class has a field {error.full_key} that cannot be: {said}"
        ) from error
    except Exception as error:  # its `__post_init__` may fail in any way
        if isinstance(error, TypeError) and not own_place(error):
            raise ConfigError(f"{owner}: every field of its config_class needs a default: {error}") from error
        raise ConfigError(f"{owner}: its config_class {schema.__name__}() failed: {told(error)}") from error


def other_arguments(kind: type, told: Collection[str] = ()) -> Iterator[str]:
    """What is wrong with the arguments of methods, which would show in the midst of a run.

    Args:
        kind: A class that builds on one of ours.
        told: Methods of which that is told elsewhere.
    """
    for name in sorted(dir(kind)):
        owner = next(base for base in kind.__mro__ if name in vars(base))
        ours = next((base for base in kind.__mro__ if ships(base) and name in vars(base)), None)
        if name.startswith("_") or name in told or ours in (None, owner):
            continue
        given, expected = vars(owner)[name], vars(ours)[name]
        if not (inspect.isfunction(given) and inspect.isfunction(expected)):
            continue
        wanted = [each for each in inspect.signature(expected).parameters.values() if each.default is each.empty]
        by_name = {each.name: None for each in wanted if each.kind is each.KEYWORD_ONLY}
        try:
            inspect.signature(given).bind(*[None] * (len(wanted) - len(by_name)), **by_name)
        except TypeError:
            listed = ", ".join(each.name for each in wanted)
            how = f"write def {name}({listed}), or call it otherwise if it is something else"
            yield f"its method {name}() is called as that of {ours.__name__}, which it overrides: {how}"


def ships(kind: type) -> bool:
    """Whether a class is one of this package."""
    return kind.__module__.partition(".")[0] == _OURS


def _look_in_current_folder() -> None:
    """Last, so that no file there takes the place of a module that is installed."""
    folder = str(Path.cwd())
    if "" not in sys.path and folder not in sys.path:
        sys.path.append(folder)


def _import_module(module: str, path: str) -> Any:
    _look_in_current_folder()
    if module not in sys.modules:
        importlib.invalidate_caches()
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a module may do anything while it is imported
        name = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
        said = f"cannot import '{path}': {told(error)}"
        missing = name and f"{module}.".startswith(f"{name}.")
        raise ConfigError(_no_such_module(path, name) if missing else said) from error


def _no_such_module(path: str, missing: str) -> str:
    parent, _, leaf = missing.rpartition(".")
    if parent.partition(".")[0] == _OURS:
        more = "Modules inside of pipeline move: import what you need from pipeline itself, as in pipeline.PITA."
        return f"cannot import '{path}': there is no module '{missing}'. {more}"
    if hasattr(sys.modules.get(parent), leaf):
        written = f"{parent}:{leaf}{path.removeprefix(missing)}"
        return (
            f"cannot import '{path}': '{leaf}' is a name in the module {parent}, and no module. Write {written}."
        )
    own = (str(Path(entry).resolve()) for entry in sys.path if not is_installed(entry))
    searched = list(getattr(sys.modules[parent], "__path__", ())) if parent else list(dict.fromkeys(own))
    near = _near(leaf, (info.name for info in pkgutil.iter_modules(searched)))
    start = " Start the command in the folder that holds it, or name that folder in PYTHONPATH."
    where = ", ".join(searched) or parent
    return f"cannot import '{path}': there is no module '{leaf}' in {where}.{near}{'' if parent else start}"


def _no_such_name(path: str, module: str, name: str, found: Any) -> str:
    names = [each for each in dir(found) if not each.startswith("_")]  # those that are made on use too
    own = [each for each in names if getattr(vars(found).get(each), "__module__", None) == module]
    listed = f" It defines {', '.join(own)}." if own else ""
    file = getattr(sys.modules[module], "__file__", None) or module
    return f"cannot import '{path}': {file} has no '{name}'.{_near(name, names)}{listed}"


def _near(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean '{near[0]}'?" if near else ""


# -- reached -----------------------------------------------------------------------------------------------------
# What code of the user's own a name reaches, as text without comments: from its definition on, through
# modules. Read from the source, and never run. Of each module there count the definitions that are reached,
# and whatever else it does when it is imported: assignments to parts of objects, calls, loops, branches. So
# does what its texts name: files, variables of the environment and modules, whichever function then reads
# them. Where the name of a module is computed, all modules count that lie beside the code or in a folder that
# its texts name. What else is found while the code runs cannot be seen, as names of files that are computed whole.


Find = Callable[[str, Sequence[str]], Path | None]
"""Takes a module's dotted name, and folders besides `sys.path`; gives its file, or None if not the user's own."""
_COMPUTED = {
    *("__dict__", "__import__", "attrgetter", "eval", "exec", "getattr", "getmembers", "globals", "import_module"),
    *("locals", "modules", "setattr", "vars"),
}
"""Names by which code may reach what does not stand in it: all of its module is taken to be reached then."""
_FAMILIES = {"__init_subclass__", "__subclasses__"}
"""By which it may reach classes of any module."""
_IMPORTS = {
    *("__import__", "get_class", "get_method", "get_object", "import_module", "import_string", "instantiate"),
    *("locate", "resolve_name", "run_module", "run_path", "spec_from_file_location"),
}
"""By which it may import what a text names; where the name is computed, whatever lies beside it."""
_FOLDERS = {"addsitedir", "path"}
"""By which it may have modules looked for in further folders: `sys.path` with them."""
_DOTENV = {"BaseSettings", "dotenv_values", "load_dotenv", "read_env"}
"""By which a library reads variables from a file ``.env``; of a `BaseSettings` fields name them."""
_SET = re.compile(r"""^[ \t]*(?:export[ \t]+)?(\w+)[ \t]*=[ \t]*['"]?(.*?)['"]?[ \t\r]*$""", re.MULTILINE)
_VARIABLES = {"environ", "environb", "expandvars", "getenv", *_DOTENV}
_SAID = {"__doc__", "from_callable", "get_json_schema", "getdoc", "model_json_schema", "signature"}
"""By which it may use what functions and classes say of themselves."""
_WRITES = {"touch", "write", "write_bytes", "write_text", "writelines"}
"""Methods of what they write to."""
_WRITES_TO = re.compile(
    r"write_\w+|dump|save\w*|to_(csv|json|parquet|pickle)|\w*FileHandler|(basic|dict|file)Config|rename|move|\w*Lock"
)
"""Functions that write to what they are given."""
_MODE = re.compile("[rbt]*[wax+][bt+]*")
"""With which `open` writes."""
_KEEPS = re.compile(r"\b(sqlitedict|shelve)\b|(INSERT|REPLACE) INTO|INSERT OR", re.IGNORECASE)
"""Of a module that keeps in a data base what it has found, it cannot be told which files are its data."""
_SAVED = {
    **dict.fromkeys(("config.json", "adapter_config.json", "tokenizer_config.json", "dataset_info.json"), "*"),
    "dataset_dict.json": "*/*",
    "modules.json": "**/*",
    "config.cfg": "**/*",
}
"""In folders of models, tokenizers and datasets, which libraries read as a whole -> what of them is read."""
_LISTS = {"FileSystemLoader", "iterdir", "listdir", "load_dataset", "rglob", "scandir", "walk"}
"""By which it may read whatever is in a folder that a text names."""
_MOST_LISTED = 10_000
"""Files there, or that a pattern means."""
_PATTERN = re.compile(r"[^*]*\w/.*|.*\.\w+")
"""With a folder or an ending."""
_DEEPEST = 4
"""Folders in each other that texts may name one by one."""
_LONGEST_NAME = 1000
"""Characters of a path."""
_OF_MACHINE = ("/proc", "/sys", "/dev")
_SIGN = re.compile(r"%[sd]|\{\w*\}|\$")
"""In a text, where something else is put."""
_PLACE = re.compile(r"%(?:\(\w+\))?[-\d.]*[dfis]|\{[^{}]*\}|\$(?:\w+|\{\w+\})")
"""For something else that is put there, as by `format`, `%` and string templates."""
_OUTSIDE = re.compile(
    "(KEY|TOKEN|SECRET|PASSWORD|^RANK|(LOCAL|NODE|GROUP|ROLE)_RANK|WORLD_SIZE|_THREADS|VISIBLE_DEVICES)$"
    "|^(CUDA|CUBLAS|GLOO|MASTER|NCCL|OMPI|PMI|PMIX|PYTHON|PYTORCH|RAY|SLURM|TORCH|TORCHELASTIC|WANDB)_"
    "|^(ATEN|DNNL|HF_HUB_DISABLE|HYDRA_FULL|MKL|NPY|NVIDIA|ONEDNN|OPENBLAS|TRANSFORMERS_SDPA)_"
    "|^(COLORTERM|COLUMNS|(FORCE|NO)_COLOR|HOME|HOSTNAME|LANG|LC_[A-Z]+|LINES|LOGNAME|PATH|PWD|PYTHON[A-Z]*|SHELL)$"
    "|^(TERM|TMPDIR|TOKENIZERS_PARALLELISM|USER|XDG_[A-Z]+_HOME)$",
    re.IGNORECASE,
)
"""Variables that give access, or that say where a process is, whose it is and by which arithmetic it computes:
they change no result, or are in keys as what computes, and workers have others."""
_HARMLESS = {"dataclass", "cache", "lru_cache", "wraps", "contextmanager", "total_ordering", "staticmethod"}
"""Decorators that register nothing."""
_IMPORTED: WeakKeyDictionary[ModuleType, bytes] = WeakKeyDictionary()
"""Modules that this process has imported -> their files as first seen."""
_ALL = "*"
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class _Module:
    """A module of the user's own: its statements in order, by the names that they bind."""

    name: str
    file: Path
    statements: list[ast.stmt] = field(default_factory=list)
    binding: dict[str, list[int]] = field(default_factory=dict)
    always: list[int] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)

    @property
    def package(self) -> str:
        """What relative imports start from."""
        return self.name if self.file.name == "__init__.py" else self.name.rpartition(".")[0]

    @property
    def nodes(self) -> list[ast.AST]:
        """Of what is taken."""
        return [node for at in self.taken for node in ast.walk(self.statements[at])]

    @property
    def texts(self) -> list[str]:
        """Texts in what is taken that may name something, and parts of them; but for variables that it sets."""
        stored = {
            node.slice
            for node in self.nodes
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
        }
        found: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and node not in stored:
                found |= _parts(node.value)
        if "with_suffix" in map(_last_name, self.nodes):
            ends = [each for each in found if re.fullmatch(r"\.\w+", each)]
            found |= {f"{os.path.splitext(each)[0]}{end}" for each in (*found, self.file.name) for end in ends}  # noqa: PTH122
        return sorted(found)

    @property
    def patterns(self) -> list[str]:
        """Texts that mean several files: with ``*``, which stands too for what is put into a text."""
        formed = [_formed(node) for node in self.nodes if isinstance(node, ast.JoinedStr | ast.BinOp)]
        texts = {_PLACE.sub("*", each) for each in (*formed, *self.texts)}
        return sorted(
            each for each in texts if "*" in each and _PATTERN.fullmatch(each) and not each.startswith(_OF_MACHINE)
        )

    @property
    def around(self) -> list[Path]:
        """Its folder, the one around it and the current one; the user's, where it asks for that."""
        home = [Path.home()] if "home" in map(_last_name, self.nodes) else []
        return [self.file.parent, self.file.absolute().parent.parent, Path(), *home]

    @property
    def beside(self) -> Iterator[str]:
        """Modules that a computed name may mean: those in its folder, and in folders that texts name."""
        calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        plain = {node.func for node in calls if all(map(self._is_plain, node.args)) and not node.keywords}
        names = {
            node.name if isinstance(node, ast.alias) and node.asname else _last_name(node)
            for node in self.nodes
            if node not in plain
        }
        if names.isdisjoint(_IMPORTS):
            return
        top = self.file.parents[self.name.count(".") + (self.file.name == "__init__.py")]
        texts = {text.strip("./") for text in self.texts}
        named = {part for text in texts for part in (text, text.rpartition(".")[0], text.rpartition("/")[0])}
        for folder in {self.file.parent, *(top / part.replace(".", "/") for part in named)}:
            if folder.is_relative_to(top) and os.path.isdir(folder):  # noqa: PTH112 - any text may be asked for
                for file in folder.glob("*.py"):
                    yield ".".join(file.relative_to(top).with_suffix("").parts).removesuffix(".__init__")

    def _is_plain(self, argument: ast.expr) -> bool:
        """Whether it is a text, or of a table of texts, that stands in the code."""
        root = argument.value if isinstance(argument, ast.Subscript) else argument
        if not isinstance(root, ast.Name):
            return isinstance(argument, ast.Constant)
        made = [node for at in self.binding.get(root.id, ()) for node in ast.walk(self.statements[at])]
        computed = any(isinstance(node, ast.Attribute | ast.BinOp | ast.Call | ast.JoinedStr) for node in made)
        return root.id == "__package__" or (bool(made) and not computed)

    def text(self, *, said: bool) -> str:
        """The code that is taken, with or without what it says of itself."""
        texts = (_text(self.statements[at], said=said) for at in sorted(self.taken))
        return "\n".join([self.name, *filter(None, texts)])


def reached_hash(module: str, name: str, find: Find) -> str | None:
    """Hash all code that a name of a module reaches; None where the module is not the user's own.

    Args:
        module: Dotted name.
        name: Of a function, class or object in it; of a part of one, with dots.
        find: Finds files of modules.
    """
    walk = _Walk(find, [])
    walk.begin(module, name)
    while walk.further != (folders := walk.folders):
        walk = _Walk(find, folders)
        walk.begin(module, name)
    if not walk.modules:
        return None
    modules = sorted(walk.modules.values(), key=lambda each: each.name)
    texts = [each.text(said=bool(walk.words & _SAID)) for each in modules]
    written, lists = _Written(modules).texts, bool(walk.words & _LISTS)
    named = {text for each in modules for text in each.texts} - written if walk.words & _VARIABLES else set()
    variables = [*os.environ.items()]
    if walk.words & _DOTENV:
        variables += _dotenv(modules)
        written |= {".env"}  # of which no more counts than its variables do
    if "BaseSettings" in walk.words:
        named |= {each.upper() for each in walk.words}
    known = [each for each in variables if _is_named(each[0], named) and not _OUTSIDE.search(each[0])]
    read = {f"${name}={value}" for name, value in known}
    keeping = [each for each, text in zip(modules, texts, strict=True) if _KEEPS.search(text)]
    values = [value for _, value in known]
    read |= {*_files([each for each in modules if each not in keeping], written, values, lists=lists)}
    return hashlib.sha256("\n\0".join([*texts, *sorted(walk.unread), *sorted(read)]).encode()).hexdigest()[:16]


def _dotenv(modules: Iterable[_Module]) -> Iterator[tuple[str, str]]:
    """Variables of the file ``.env`` that is nearest to each module, and to the current folder."""
    for folder in {Path.cwd(), *(each.file.absolute().parent for each in modules)}:
        with suppress(OSError, StopIteration):
            nearest = next(file for each in (folder, *folder.parents) if (file := each / ".env").is_file())
            yield from _SET.findall(nearest.read_text(errors="replace"))


def _parts(value: str | bytes) -> set[str]:
    """A text and parts of it, as far as they may name something."""
    text = value if isinstance(value, str) else value.decode(errors="ignore")
    if len(text) > _LONGEST_NAME or not text.isprintable():
        return set()
    found = {each for each in (text, *_SIGN.split(text), *text.split()) if re.search(r"\w", each)}
    return found | {each.strip("/") for each in found} | {os.path.expanduser(each) for each in found}  # noqa: PTH111


class _Written:
    """Finds texts that name what code writes: those of calls that write, and of what names in these stand for.

    Attributes:
        texts: They.
    """

    def __init__(self, modules: Iterable[_Module]) -> None:
        self.texts: set[str] = set()
        self._calls: list[ast.Call] = []
        self._within: dict[ast.AST, ast.AST] = {}  # node -> the innermost function that it stands in
        self._made: dict[tuple[ast.AST | None, str], list[ast.AST]] = {}  # function, name -> what it may be
        self._seen: set[ast.AST] = set()
        nodes = [node for module in modules for node in module.nodes]
        for node in nodes:
            if isinstance(node, _FUNCTIONS):
                self._within |= dict.fromkeys((each for one in node.body for each in ast.walk(one)), node)
        for node in nodes:
            self._bind(node)
        for call in self._calls:
            for place in self._places(call):
                self._follow(place)

    def _bind(self, node: ast.AST) -> None:
        """Note what a node makes names stand for."""
        pairs: list[tuple[ast.AST | None, ast.AST | None]] = []
        match node:
            case ast.Call(keywords=keywords):
                self._calls.append(node)
                for given in keywords:
                    self._made.setdefault((None, str(given.arg)), []).append(given.value)
            case ast.Assign():
                pairs = [(target, node.value) for target in node.targets]
            case ast.AnnAssign() | ast.NamedExpr():
                pairs = [(node.target, node.value)]
            case ast.For() | ast.comprehension():
                pairs = [(node.target, node.iter)]
            case ast.withitem():
                pairs = [(node.optional_vars, node.context_expr)]
            case ast.Return() if node in self._within:
                self._made.setdefault((None, getattr(self._within[node], "name", "")), []).append(node)
        for target, value in pairs:
            if target is None or value is None:
                continue
            for each in ast.walk(target):
                if name := _last_name(each):
                    owner = self._within.get(each) if isinstance(each, ast.Name) else None
                    self._made.setdefault((owner, name), []).append(value)

    def _places(self, call: ast.Call) -> list[ast.AST]:
        """What a call writes to; nothing of one that writes nothing."""
        name, given = _last_name(call.func), [*call.args, *(each.value for each in call.keywords)]
        if name in _WRITES:
            return [call.func]
        modes = (each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str))
        if name == "open" and any(map(_MODE.fullmatch, modes)):
            return [call.func, *given]
        to_log = name == "add" and _last_name(getattr(call.func, "value", None)) == "logger"  # loguru's
        return [*given] if to_log or _WRITES_TO.fullmatch(name) else []

    def _follow(self, place: ast.AST) -> None:
        for node in ast.walk(place):
            if node in self._seen:
                continue
            self._seen.add(node)
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                self.texts |= _parts(node.value)
            if isinstance(node, ast.JoinedStr | ast.BinOp):
                self.texts.add(_PLACE.sub("*", _formed(node)))
            name, owner = _last_name(node), self._within.get(node)
            if name and isinstance(node, ast.Name | ast.Attribute):
                known = self._made.get((owner, name)) if isinstance(node, ast.Name) else None
                for value in [*(known or self._made.get((None, name), [])), *self._given(owner, name)]:
                    self._follow(value)

    def _given(self, function: ast.AST | None, name: str) -> Iterator[ast.AST]:
        """What a parameter of a function is given."""
        if not isinstance(function, _FUNCTIONS):
            return
        named = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        if name not in {*named, *(each.arg for each in function.args.kwonlyargs)}:
            return
        yield from [*function.args.defaults, *filter(None, function.args.kw_defaults)]
        at = named.index(name) - (named[0] in {"self", "cls"}) if name in named else len(named)
        for call in self._calls:
            # A class is called by another name than the method that makes one.
            if function.name in {_last_name(call.func), "__init__"}:
                yield from call.args[at : at + 1]
                yield from (each.value for each in call.keywords if each.arg == name)


def _is_named(variable: str, texts: Collection[str]) -> bool:
    """Whether texts name a variable of the environment, or begin or end its name, as ``APP_`` does."""
    starts = tuple(each for each in texts if len(each) > 2 and each.endswith("_"))
    ends = tuple(each for each in texts if len(each) > 2 and each.startswith("_"))
    return variable in texts or variable.startswith(starts) or variable.endswith(ends)


def _folders(modules: Iterable[_Module]) -> list[Path]:
    """Folders of modules, those around them and the current one, and those in them that texts of any name."""
    own, named = [*modules], {text for each in modules for text in each.texts}
    named |= {each.replace(".", "/") for each in named if re.fullmatch(r"\w+(\.\w+)+", each)}  # a package
    found = dict.fromkeys(place for each in own for place in each.around)
    inside = [*found]
    for _ in range(_DEEPEST):
        inside = [Path(at, name) for at in inside for name in named if os.path.isdir(Path(at, name))]  # noqa: PTH112
        inside = [each for each in inside if each not in found]
        found |= dict.fromkeys(inside)
    return list(found)


def _files(
    modules: Sequence[_Module], written: Collection[str], values: Collection[str], *, lists: bool
) -> Iterator[str]:
    """The files that texts of modules name or mean, and those of folders that are read as a whole.

    Args:
        modules: They; what one names may lie in a folder that another names.
        written: Texts that name what is written, and so no data.
        values: Texts besides those of their code: values of variables.
        lists: Whether all of a folder may be read.
    """
    around = {place for each in modules for place in each.around}
    further = [Path(each) for each in values if re.search(r"\w", each) and os.path.isdir(each)]  # noqa: PTH112
    folders = [each for each in (*_folders(modules), *further) if not str(each).startswith(_OF_MACHINE)]
    patterns = {each for module in modules for each in module.patterns} - {*written}
    several = [(folder, pattern) for folder in folders for pattern in patterns]
    whole = [each for each in folders if lists and each not in around and each.name not in written]
    several += [(folder, "./**") for folder in whole]
    for folder, pattern in several:
        deep = "/" in pattern.partition("*")[0]  # not through all of the current folder
        names = iglob(pattern, root_dir=folder, recursive=deep)  # noqa: PTH207 - a pattern may be absolute
        for name in sorted(islice(names, _MOST_LISTED)):
            file = Path(folder, name)
            if file.is_file() and not file.suffix.startswith(".py") and file.name not in written:
                with suppress(OSError):
                    yield f"{pattern} {name} {file_sha256(file, follow=True)}"
    read = {name for module in modules for name in module.texts} | {*values}
    read = {name for name in read - {*written} if re.search(r"\w", name)}
    for folder, name in product(folders, sorted(read)):
        place = Path(folder, name)
        if not os.path.exists(place) or str(place).startswith(_OF_MACHINE):  # noqa: PTH110 - any text may be asked for
            continue
        within = [place] if place.is_file() else []
        if found := {_SAVED[each] for each in _SAVED if (place / each).is_file()}:
            pattern = max(found, key=len)
            within = sorted(each for each in place.glob(pattern) if each.is_file())
        for file in within:
            with suppress(OSError):  # who reads it will tell
                yield f"{name} {file.relative_to(place)} {file_sha256(file, follow=True)}"


def _formed(node: ast.expr) -> str:
    """A text that is put together, with ``*`` for what is no text in the code."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(_formed, parts))
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return _formed(left) + _formed(right)
    return "*"


def _last_name(node: object) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


class _Walk:
    """A walk through modules, from a name on.

    Attributes:
        modules: Those of the user's own that are reached.
        further: Folders besides those where modules are looked for.
        unread: What is covered as bytes, since it is no Python that can be read.
    """

    def __init__(self, find: Find, further: Sequence[str]) -> None:
        self.modules: dict[str, _Module] = {}
        self.unread: list[str] = []
        self._find = find
        self.further = further
        self._known: dict[str, _Module | None] = {}
        self._visited: set[tuple[str, str]] = set()

    @property
    def words(self) -> set[str]:
        """Names that stand in what is taken."""
        nodes = [node for module in self.modules.values() for node in module.nodes]
        return {str(getattr(node, each, "")) for node in nodes for each in ("attr", "id", "name")}

    @property
    def folders(self) -> list[str]:
        """Those where it may have modules looked for besides."""
        computes = self.words & _FOLDERS and "sys" in self.words
        return [*map(str, _folders(self.modules.values()))] if computes else []

    def begin(self, module: str, name: str) -> None:
        """Take a name of a module, and what is reached by texts too, or by being there, until nothing more is."""
        self.visit(module, name.partition(".")[0])
        seen = -1
        while seen < (seen := len(self._visited)):
            words, modules = self.words, list(self.modules.values())
            for own in modules if words & _FAMILIES else ():
                self.visit(own.name, _ALL)
            texts = {text for own in modules for text in own.texts}
            imports = bool(words & _IMPORTS) or "-m" in texts
            for beside in {each for own in modules for each in own.beside} if imports else ():
                self.visit(beside, _ALL)
            for text in texts if imports else ():
                name = text.replace(":", ".")
                for package in {own.package for own in modules} if name.startswith(".") else {""}:
                    whole = f"{package}{name}"
                    for each in (whole, whole.rpartition(".")[0], f"{whole}.__main__"):
                        if re.fullmatch(r"\w+(\.\w+)*", each):
                            self.visit(each, _ALL)

    def visit(self, name: str, wanted: str = "") -> None:
        """Take a name of a module, all of it for ``*``, and what importing it does; with its packages."""
        if (name, wanted) in self._visited:
            return
        self._visited.add((name, wanted))
        if parent := name.rpartition(".")[0]:
            self.visit(parent)
        if (module := self._module(name)) is None:
            return
        at = [*module.always, *module.binding.get(wanted, ())]
        if wanted == _ALL:
            at = [*range(len(module.statements))]
        elif wanted and wanted not in module.binding:
            self.visit(f"{name}.{wanted}")
            at += module.binding.get("__getattr__", [])
        for place in at:
            self._take(module, place)
        for handed in module.binding if wanted == _ALL else {wanted} & module.binding.keys():
            self._follow(module, handed)  # what it has imported itself it may hand on

    def _module(self, name: str) -> _Module | None:
        if name not in self._known:
            file = self._find(name, self.further)
            self._known[name] = found = None if file is None else self._read(name, file)
            if found is not None:
                self.modules[name] = found
        return self._known[name]

    def _read(self, name: str, file: Path) -> _Module:
        content, module = file.read_bytes(), _Module(name, file)
        if name in sys.modules:
            content = _IMPORTED.setdefault(sys.modules[name], content)
        try:
            module.statements = ast.parse(content if file.suffix == ".py" else b"(").body
        except (SyntaxError, ValueError):  # importing it will tell
            self.unread.append(f"{name} {hashlib.sha256(content).hexdigest()}")
        for at, statement in enumerate(module.statements):
            names = _bound(statement)
            for bound in names or ():
                module.binding.setdefault(bound, []).append(at)
            if (not names or isinstance(statement, ast.Import | ast.ImportFrom)) and not _is_main(statement):
                module.always.append(at)
        return module

    def _take(self, module: _Module, at: int) -> None:
        if at in module.taken:
            return
        module.taken.add(at)
        statement = module.statements[at]
        nodes = list(ast.walk(statement))
        used = [node for node in nodes if isinstance(node, ast.Name | ast.Attribute)]
        names = {node.id for node in used if isinstance(node, ast.Name)}
        attributes = {node.attr for node in used if isinstance(node, ast.Attribute)}
        parts = {node.value for node in used if isinstance(node, ast.Attribute)}
        whole = {_last_name(node) for node in used if node not in parts}
        for node in nodes:
            for source, inner, bound in _imports(module, node):
                # One at the top hands on only what is used; one inside of a function is taken with what it names.
                self.visit(source, _ALL if inner == _ALL else "")
                if node is not statement and inner != _ALL:
                    self._use(source, inner, attributes, whole | ({bound} - names), bound)
        if (computed := (names | attributes) & _COMPUTED) and computed.isdisjoint(module.binding):
            self.visit(module.name, _ALL)
        for name in sorted(names | computed):
            for place in module.binding.get(name, ()):
                self._take(module, place)
            self._follow(module, name, attributes, whole)

    def _follow(
        self, module: _Module, name: str, attributes: Collection[str] = (), whole: Collection[str] | None = None
    ) -> None:
        """Follow a name that a statement at the top of a module has imported."""
        for at in module.binding.get(name, ()):
            for source, inner, bound in _imports(module, module.statements[at]):
                if bound == name:
                    self._use(source, inner, attributes, {name} if whole is None else whole, name)

    def _use(
        self, source: str, inner: str, attributes: Collection[str], whole: Collection[str], bound: str
    ) -> None:
        """Take what is used of an imported module, or a name of one.

        Args:
            source: The module.
            inner: The name.
            attributes: All that stand beside its name.
            whole: Names and attributes of which nothing is taken there: what they mean is handed on as it is.
            bound: By which it is known there.
        """
        if inner:
            self.visit(source, inner)
            source = f"{source}.{inner}"
        if (module := self._module(source)) is None:
            return
        if bound in whole:
            self.visit(source, _ALL)
        for each in attributes:
            if each in module.binding or "__getattr__" in module.binding:
                self.visit(source, each)
            else:
                self._use(f"{source}.{each}", "", attributes, whole, each)


def _imports(module: _Module, node: ast.AST) -> Iterator[tuple[str, str, str]]:
    """What a statement imports: a module, a name of it or "", and what it binds."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.partition(".")[0]
            yield alias.name, "", alias.asname or top
            if not alias.asname:
                yield top, "", top
    if isinstance(node, ast.ImportFrom):
        around = module.package.split(".")[: -node.level + 1 or None] if node.level else []
        source = ".".join([*around, *([node.module] if node.module else [])])
        yield from ((source, alias.name, alias.asname or alias.name) for alias in node.names)


def _bound(statement: ast.stmt) -> set[str] | None:
    """Names that a statement binds and nothing else; None for one that does more, or what cannot be told."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            # Decorators may register it somewhere, from where it is reached by no name.
            each = [one.func if isinstance(one, ast.Call) else one for one in statement.decorator_list]
            called = set(map(_last_name, each))
            return {statement.name} if called <= _HARMLESS else None
        case ast.Import() | ast.ImportFrom():
            return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
        case ast.Assign(targets=targets):
            nodes = [node for target in targets for node in ast.walk(target)]
            plain = all(isinstance(node, ast.Name | ast.Tuple | ast.List | ast.expr_context) for node in nodes)
            return {node.id for node in nodes if isinstance(node, ast.Name)} if plain else None
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return None


def _is_main(statement: ast.stmt) -> bool:
    """Whether a statement is for those who start the module as a program."""
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'"


def _text(statement: ast.stmt, *, said: bool) -> str:
    """The code of a statement: no comments and layout, nor, unless used, texts that say what it does."""
    for node in ast.walk(statement) if not said else ():
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_said(each)] or [ast.Pass()]  # type: ignore[attr-defined]
    return "" if _is_said(statement) and not said else ast.unparse(statement)


def _is_said(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None) if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
