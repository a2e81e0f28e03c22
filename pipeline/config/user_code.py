"""Import the user's own code by dotted path, explain failures, and find out which code it uses.

The current folder comes last in `sys.path`, for every script, and workers get the same list.
"""

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
        ConfigError: There is no such module or name, or importing the module fails.
    """
    module, name = split_path(path)
    item: Any = _import_module(module, path)
    for part in name.split("."):
        if not hasattr(item, part):
            raise ConfigError(_no_such_name(path, module, part, item))
        item = getattr(item, part)
    return item


def split_path(path: str) -> tuple[str, str]:
    """Split a dotted path into module and name.

    Raises:
        ConfigError: The path is not a dotted path.
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
    """Find the module of a dotted path without running it; its parent packages are imported.

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
    """Return the Python file of a dotted path, or None if its module has none.

    Raises:
        ConfigError: There is no such module.
    """
    origin = find_module(path).origin
    return Path(origin) if origin is not None and origin.endswith(".py") and Path(origin).is_file() else None


@cache
def source_hash(path: str) -> str | None:
    """Return a hash of the user's code that a dotted path reaches; None if it has no file.

    Comments and layout do not count; see `reached_hash`. For an installed module it is the hash of its file. It is
    computed once per process, as the module is imported once: an edit takes effect, and changes keys, from the
    next start on.

    Raises:
        ConfigError: There is no such module.
    """
    file = source_file(path)
    if file is None:
        return None
    if digest := reached_hash(*split_path(path), _own_file):
        return digest
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _own_file(module: str, further: Sequence[str]) -> Path | None:
    """Return the file of a module, unless it belongs to Python, an installed package or this one.

    Imports nothing.
    """
    top, *inner = module.split(".")
    if top in {_OURS, *sys.stdlib_module_names}:
        return None
    _look_in_current_folder()
    try:
        spec = importlib.util.find_spec(top) or PathFinder.find_spec(top, further)
        for part in inner:  # a dotted name without __init__.py would need its parents imported
            inside = spec.submodule_search_locations if spec else None
            spec = None if inside is None else PathFinder.find_spec(part, list(inside))
    except (ImportError, ValueError, KeyError):  # created in memory, nonexistent, or a folder
        return None
    origin = None if spec is None else spec.origin
    if origin is None or not Path(origin).is_file() or is_installed(origin):
        return None
    # Packages of `pip --target` have their metadata beside them.
    folder = Path(origin).parents[len(inner) + (Path(origin).name == "__init__.py")]
    return None if next(folder.glob("*.dist-info"), None) else Path(origin)


def check_unchanged(planned: Mapping[str, str | None]) -> None:
    """Refuse to run code that differs from the code at planning.

    Args:
        planned: Dotted path -> `source_hash` in the engine.

    Raises:
        JobError: A file was changed since.
    """
    for path, expected in planned.items():
        if source_hash(path) != expected:
            again = "Run the same command again: what the change touches is made anew."
            what = f"{source_file(path)} was changed after this run had begun, or what it imports"
            raise JobError(f"{what}, or a file that a text in them names. {again}")


def ask(owner: str, question: Callable[[], _Answer]) -> _Answer:
    """Ask a question of code that may be the user's own, and so may fail in any way.

    Args:
        owner: Name of the code, for messages.
        question: Function that asks it.

    Raises:
        ConfigError: It raised.
    """
    try:
        return question()
    except PipelineError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{owner} failed: {told(error)}") from error


def check_settings_class(owner: str, schema: object, base: type) -> None:
    """Refuse a settings class that a worker could not rebuild.

    Args:
        owner: Dotted path of the class whose `config_class` it is.
        schema: The settings class.
        base: Required base class.

    Raises:
        ConfigError: The message says what is wrong with it.
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
    from omegaconf import OmegaConf  # slow to import, and rarely needed
    from omegaconf.errors import OmegaConfBaseException

    try:
        OmegaConf.structured(schema())
    except OmegaConfBaseException as error:
        problem = str(error).partition("\n")[0]
        raise ConfigError(
            f"{owner}: its config_class has a field {error.full_key} that cannot be: {problem}"
        ) from error
    except Exception as error:  # its `__post_init__` may fail in any way
        if isinstance(error, TypeError) and not own_place(error):
            raise ConfigError(f"{owner}: every field of its config_class needs a default: {error}") from error
        raise ConfigError(f"{owner}: its config_class {schema.__name__}() failed: {told(error)}") from error


def other_arguments(kind: type, told: Collection[str] = ()) -> Iterator[str]:
    """Yield problems with the arguments of methods, which would otherwise show during a run.

    Args:
        kind: A subclass of one of ours.
        told: Methods that are checked elsewhere.
    """
    for name in sorted(dir(kind)):
        owner = next(base for base in kind.__mro__ if name in vars(base))
        ours = next((base for base in kind.__mro__ if ships(base) and name in vars(base)), None)
        if name.startswith("_") or name in told or ours in (None, owner):
            continue
        method, expected = vars(owner)[name], vars(ours)[name]
        if not (inspect.isfunction(method) and inspect.isfunction(expected)):
            continue
        wanted = [arg for arg in inspect.signature(expected).parameters.values() if arg.default is arg.empty]
        by_name = {arg.name: None for arg in wanted if arg.kind is arg.KEYWORD_ONLY}
        try:
            inspect.signature(method).bind(*[None] * (len(wanted) - len(by_name)), **by_name)
        except TypeError:
            listed = ", ".join(arg.name for arg in wanted)
            how = f"write def {name}({listed}), or call it otherwise if it is something else"
            yield f"its method {name}() is called as that of {ours.__name__}, which it overrides: {how}"


def ships(kind: type) -> bool:
    """Return whether a class is from this package."""
    return kind.__module__.partition(".")[0] == _OURS


def _look_in_current_folder() -> None:
    """Add the current folder last, so that no file there shadows an installed module."""
    folder = str(Path.cwd())
    if "" not in sys.path and folder not in sys.path:
        sys.path.append(folder)


def _import_module(module: str, path: str) -> Any:
    _look_in_current_folder()
    if module not in sys.modules:
        importlib.invalidate_caches()
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:  # importing a module may do anything
        name = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
        problem = f"cannot import '{path}': {told(error)}"
        missing = name and f"{module}.".startswith(f"{name}.")
        raise ConfigError(_no_such_module(path, name) if missing else problem) from error


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


def _no_such_name(path: str, module: str, name: str, owner: Any) -> str:
    names = [other for other in dir(owner) if not other.startswith("_")]  # those that are made on use too
    own = [other for other in names if getattr(vars(owner).get(other), "__module__", None) == module]
    listed = f" It defines {', '.join(own)}." if own else ""
    file = getattr(sys.modules[module], "__file__", None) or module
    return f"cannot import '{path}': {file} has no '{name}'.{_near(name, names)}{listed}"


def _near(name: str, others: Iterable[str]) -> str:
    near = get_close_matches(name, list(others), n=1, cutoff=0.5)
    return f" Did you mean '{near[0]}'?" if near else ""


# -- reached -----------------------------------------------------------------------------------------------------
# Find the user's code that a name reaches, as text without comments, by parsing and never running it. All modules
# count that counted code imports. In a module, statements count that do more than bind a name, such as calls and
# branches, and those that bind a name used in counted code of any module. Files, environment variables and modules
# named by texts in counted code count too. In doubt more is covered than necessary. Names that are only computed
# at run time cannot be seen.


Find = Callable[[str, Sequence[str]], Path | None]
"""Function from a module's dotted name, and folders besides `sys.path`, to its file, or None if it is not the
user's own."""
_COMPUTED = {
    *("__dict__", "__import__", "__init_subclass__", "__subclasses__", "attrgetter", "eval", "exec", "getattr"),
    *("getmembers", "globals", "import_module", "locals", "modules", "setattr", "vars"),
}
"""Names through which code may reach anything; then all of its modules count completely."""
_IMPORTS = {
    *("__import__", "get_class", "get_method", "get_object", "import_module", "import_string", "instantiate"),
    *("locate", "resolve_name", "run_module", "run_path", "spec_from_file_location"),
}
"""Names through which code may import a module named by a text; if the name is computed, all neighbouring modules
count."""
_DOTENV = {"BaseSettings", "dotenv_values", "load_dotenv", "read_env"}
"""Names through which a library reads variables from a file ``.env``; fields of a `BaseSettings` name the
variables."""
_SET = re.compile(r"""^[ \t]*(?:export[ \t]+)?(\w+)[ \t]*=[ \t]*['"]?(.*?)['"]?[ \t\r]*$""", re.MULTILINE)
_VARIABLES = {"environ", "environb", "expandvars", "getenv", *_DOTENV}
_SAID = {
    *("__doc__", "from_callable", "get_json_schema", "getdoc", "getsource", "getsourcelines", "model_json_schema"),
    *("render_doc", "signature"),
}
"""Names through which code may use docstrings."""
_WRITES = {"touch", "write", "write_bytes", "write_text", "writelines"}
"""Methods that write to their object."""
_WRITES_TO = re.compile(
    r"write_\w+|dump|save\w*|to_(csv|json|parquet|pickle)|\w*FileHandler|(basic|dict|file)Config|rename|move|\w*Lock"
    r"|SqliteDict|logger\.add|shelve\.open"
)
"""Functions that write to their arguments."""
_MODE = re.compile("[rbt]*[wax+][bt+]*")
"""Modes with which `open` writes."""
_KEEPS = re.compile(r"(INSERT|REPLACE) INTO|INSERT OR", re.IGNORECASE)
"""Names in code that caches its data in a database."""
_SAVED = (
    "adapter_config.json",
    "config.cfg",
    "config.json",
    "dataset_dict.json",
    "dataset_info.json",
    "modules.json",
)
"""Files in folders of models, datasets and tokenizers, which libraries read as a whole."""
_LISTS = {"FileSystemLoader", "iterdir", "listdir", "load_dataset", "rglob", "scandir", "walk"}
"""Names through which code may read everything in a folder that a text names."""
_ALL = "./**"
"""Pattern of everything in a folder."""
_OF_RUNS = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(_\d+)?|latest|sweep")
"""Names in the folder of an experiment, which is beside the store."""
_MOST_LISTED = 10_000
"""Most files in such a folder, or for a pattern."""
_PATTERN = re.compile(r"[^*]*\w/.*|.*\.\w+")
"""A pattern with a folder or a suffix."""
_DEEPEST = 4
"""Most levels of nested folders that texts may name one by one."""
_LONGEST_NAME = 1000
"""Longest path in characters."""
_OF_MACHINE = ("/proc", "/sys", "/dev")
_PLACE = re.compile(r"%(?:\(\w+\))?[-\d.]*[dfis]|\{[^{}]*\}|\$(?:\w+|\{\w+\})")
"""Placeholders of `format`, `%` and string templates in a text."""
_OUTSIDE = re.compile(
    "(KEY|TOKEN|SECRET|PASSWORD|^RANK|(LOCAL|NODE|GROUP|ROLE)_RANK|WORLD_SIZE|_THREADS|VISIBLE_DEVICES)$"
    "|^(CUDA|CUBLAS|GLOO|MASTER|NCCL|OMPI|PMI|PMIX|PYTHON|PYTORCH|RAY|SLURM|TORCH|TORCHELASTIC|WANDB)_"
    "|^(ATEN|DNNL|HF_HUB_DISABLE|HYDRA_FULL|MKL|NPY|NVIDIA|ONEDNN|OPENBLAS|TRANSFORMERS_SDPA)_"
    "|^(COLORTERM|COLUMNS|(FORCE|NO)_COLOR|HOME|HOSTNAME|LANG|LC_[A-Z]+|LINES|LOGNAME|PATH|PWD|PYTHON[A-Z]*|SHELL)$"
    "|^(_|TERM|TMPDIR|TOKENIZERS_PARALLELISM|USER|XDG_[A-Z]+_HOME)$",
    re.IGNORECASE,
)
"""Variables with credentials, or that describe the process or its arithmetic. They change no result, or keys cover
them otherwise, and workers have other values."""
_HARMLESS = {"dataclass", "cache", "lru_cache", "wraps", "contextmanager", "total_ordering", "staticmethod"}
"""Decorators that register nothing."""
_IMPORTED: WeakKeyDictionary[ModuleType, bytes] = WeakKeyDictionary()
"""Imported modules -> their files as first seen."""
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def reached_hash(module: str, name: str, find: Find) -> str | None:
    """Hash all code that a name of a module reaches; None if the module is not the user's own.

    Args:
        module: Dotted name.
        name: Name of a function, class or object in it, or a dotted part of one.
        find: Finds files of modules.
    """
    reached = _Reached(module, name, find)
    if not reached.modules:
        return None
    modules = [reached.modules[module] for module in sorted(reached.modules)]
    texts = [module.text(with_docstrings=reached.asks_for_docstrings) for module in modules]
    written = _Written(reached.nodes).texts
    variables = reached.variables(written)
    read = {f"${name}={value}" for name, value in variables} | {*reached.files(written, variables)}
    return hashlib.sha256("\n\0".join([*texts, *sorted(read)]).encode()).hexdigest()[:16]


@dataclass
class _Module:
    """A module of the user's own: its statements, and which of them count.

    Attributes:
        bound: Names that each of them binds if it does nothing else; see `_bound`.
        taken: Indices of the statements that count.
        unread: Hash of the bytes of a file that is not readable Python.
    """

    name: str
    file: Path
    statements: list[ast.stmt] = field(default_factory=list)
    bound: list[set[str] | None] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    unread: str = ""

    @property
    def package(self) -> str:
        """Package from which relative imports start."""
        return self.name if self.file.name == "__init__.py" else self.name.rpartition(".")[0]

    def text(self, *, with_docstrings: bool) -> str:
        """Return the code that counts, with or without docstrings."""
        texts = (_text(self.statements[at], with_docstrings=with_docstrings) for at in sorted(self.taken))
        return "\n".join([self.name, *filter(None, [*texts, self.unread])])


class _Reached:
    """All code that a name of a module reaches.

    Attributes:
        modules: The user's own modules, by name.
        nodes: Nodes of statements that count.
        words: Names used there.
        texts: Texts there that may name something, and parts of them, except variables that are set; those of
            docstrings only if they may be used.
    """

    def __init__(self, module: str, name: str, find: Find) -> None:
        self.modules: dict[str, _Module] = {}
        self.nodes: list[ast.AST] = []
        self.words = {name.partition(".")[0]}
        self.texts: set[str] = set()
        self._said: set[str] = set()
        self._find = find
        self._imports: set[tuple[str, str, str, str]] = set()
        # names used without attribute access, so that all of such a module may be used
        self._handed: set[str] = set()
        self._modules_used = {module}
        self._sought: set[str] = set()
        self._whole: set[str] = set()
        self._further: list[str] = []
        reached = (self.nodes, self.words, self.modules, self._modules_used, self._whole)
        sizes: list[int] = []
        while sizes != [*map(len, reached)]:
            sizes = [*map(len, reached)]
            self._grow()

    def _grow(self) -> None:
        """Add everything that counts by now."""
        if self.asks_for_docstrings:
            self.texts |= self._said
        # further folders in which modules may be searched
        if self._further != (folders := [*map(str, self.folders)]):
            self._further, self._sought = folders, set()
        computed = not self.words.isdisjoint(_COMPUTED)
        for importer, source, inner, name in [*self._imports]:
            everything = computed or importer in self._whole
            if everything or name in self.words:
                self.words.add(inner)
            whole = f"{source}.{inner}" if f"{source}.{inner}" in self.modules else source
            is_module = whole != source or not inner
            is_handed = is_module and not self._handed.isdisjoint({name, whole.rpartition(".")[2]})
            if is_handed or (everything and inner == "*"):
                self._whole.add(whole)
        for module in [*self.modules.values()]:
            everything = computed or module.name in self._whole
            for at, bound in enumerate(module.bound):
                if at not in module.taken and (everything or bound is None or not bound.isdisjoint(self.words)):
                    self._take(module, at)
        self._whole |= set(self._named())
        for name in self._whole | self._modules_used:
            self._visit(name)

    def _take(self, module: _Module, at: int) -> None:
        """Count a statement."""
        module.taken.add(at)
        nodes = list(ast.walk(module.statements[at]))
        self.nodes += nodes
        names = {node for node in nodes if isinstance(node, ast.Name | ast.Attribute)}
        self.words |= set(map(_last_name, names))
        # A class that registers its subclasses also uses those defined in other modules.
        self.words |= _COMPUTED & {node.name for node in nodes if isinstance(node, _FUNCTIONS)}
        before_a_dot = {node.value for node in names if isinstance(node, ast.Attribute)}
        self._handed |= set(map(_last_name, names - before_a_dot))
        stored = {
            node.slice for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
        }
        said = {node.value for node in nodes if isinstance(node, ast.Expr) and _is_said(node)}
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and node not in stored:
                into = self._said if node in said else self.texts
                into |= _parts(node.value)
            for source, inner, bound in _imports(module, node):
                self._imports.add((module.name, source, inner, bound))
                self._modules_used |= {source, f"{source}.{inner}"} if inner not in ("", "*") else {source}

    def _visit(self, name: str) -> None:
        """Parse a module and its parent packages, as importing it would run them; only the user's own."""
        if name in self._sought:
            return
        self._sought.add(name)
        if parent := name.rpartition(".")[0]:
            self._visit(parent)
        if name in self.modules or (file := self._find(name, self._further)) is None:
            return
        content = file.read_bytes()
        self.modules[name] = module = _Module(name, file)
        if name in sys.modules:
            content = _IMPORTED.setdefault(sys.modules[name], content)
        try:
            module.statements = ast.parse(content if file.suffix == ".py" else b"(").body
        except (SyntaxError, ValueError):  # importing it will report this
            module.unread = hashlib.sha256(content).hexdigest()
        module.bound = [*map(_bound, module.statements)]

    def _named(self) -> Iterator[str]:
        """Yield modules that texts name, if texts may be imported; for computed names those that may be meant."""
        if self.words.isdisjoint(_IMPORTS) and "-m" not in self.texts:
            return
        packages = {own.package for own in self.modules.values()}
        for text in self.texts:
            name = text.replace(":", ".")
            for package in packages if name.startswith(".") else {""}:
                whole = f"{package}{name}"
                named = [whole, whole.rpartition(".")[0], f"{whole}.__main__"]
                yield from (module for module in named if re.fullmatch(r"\w+(\.\w+)*", module))
        calls = [node for node in self.nodes if isinstance(node, ast.Call) and not node.keywords]
        plain = {call.func for call in calls if all(isinstance(argument, ast.Constant) for argument in call.args)}
        names = {_last_name(node) for node in self.nodes if node not in plain}
        names |= {inner for _, _, inner, bound in self._imports if inner != bound}
        if not names.isdisjoint(_IMPORTS):
            yield from self._beside()

    def _beside(self) -> Iterator[str]:
        """Yield modules in the folders of reached modules, and in folders that texts name."""
        texts = [part for text in self.texts for part in (text, text.rpartition(".")[0], text.rpartition("/")[0])]
        named, own = {text.replace(".", "/") for text in texts}, [*self.modules.values()]
        for top in {each.file.parents[each.name.count(".") + (each.file.name == "__init__.py")] for each in own}:
            folders = {top / name for name in named if os.path.isdir(top / name)}  # noqa: PTH112 - any text
            for folder in folders | {each.file.parent for each in own}:
                for file in folder.glob("*.py") if folder.is_relative_to(top) else ():
                    yield ".".join(file.relative_to(top).with_suffix("").parts).removesuffix(".__init__")

    @property
    def asks_for_docstrings(self) -> bool:
        """Whether code may use docstrings, by a name or by a text, as in ``getattr(reward, "__doc__")``."""
        return not _SAID.isdisjoint(self.words | self.texts)

    @property
    def around(self) -> set[Path]:
        """Folders of modules, their parents and the current folder; those of the user, if code asks for them."""
        home = {Path.home()} if "home" in self.words else set()
        files = [module.file.absolute() for module in self.modules.values()]
        return {Path(), *home, *(folder for file in files for folder in (file.parent, file.parent.parent))}

    @property
    def folders(self) -> list[Path]:
        """These folders, and the folders in them that texts of any module name."""
        packages = {text.replace(".", "/") for text in self.texts if re.fullmatch(r"\w+(\.\w+)+", text)}
        named, reached = sorted(self.texts | packages), dict.fromkeys(sorted(self.around))
        inside = [*reached]
        for _ in range(_DEEPEST):
            inside = [at / name for at in inside for name in named if os.path.isdir(at / name)]  # noqa: PTH112
            inside = [folder for folder in inside if folder not in reached]
            reached |= dict.fromkeys(inside)
        return [folder for folder in reached if not str(folder).startswith(_OF_MACHINE)]

    def variables(self, written: Collection[str]) -> list[tuple[str, str]]:
        """Return the variables that texts name, except names of written files, with their values."""
        if self.words.isdisjoint(_VARIABLES):
            return []
        environment = [*os.environ.items()]
        if not self.words.isdisjoint(_DOTENV):
            environment += _dotenv([module.file for module in self.modules.values()])
        named = {name for text in self.texts - {*written} for name in re.findall(r"\w+", text)}
        if "BaseSettings" in self.words:
            named |= {word.upper() for word in self.words}
        return [pair for pair in environment if _is_named(pair[0], named) and not _OUTSIDE.search(pair[0])]

    def files(self, written: Collection[str], variables: Iterable[tuple[str, str]]) -> Iterator[str]:
        """Yield the files that texts and values of variables name, and those of folders that are read as a whole.

        A text may name a file in a folder that another text names.

        Args:
            written: Texts that name written files, which are no input.
            variables: Names and values.
        """
        values = {value for _, value in variables if re.search(r"\w", value)}
        named = {name for name in self.texts | values if re.search(r"\w", name)} - {*written}
        if "with_suffix" in self.words:
            ends = [name for name in named if re.fullmatch(r"\.\w+", name)]
            files = [*named, *(module.file.name for module in self.modules.values())]
            named |= {f"{os.path.splitext(file)[0]}{end}" for file in files for end in ends}  # noqa: PTH122
        if not self.words.isdisjoint(_DOTENV):
            named -= {".env"}  # such a file counts only for its variables
        folders = [*self.folders, *(Path(value) for value in values if os.path.isdir(value))]  # noqa: PTH112
        for folder, name in product(folders, sorted(named)):
            path = folder / name
            if os.path.isfile(path) and not str(path).startswith(_OF_MACHINE):  # noqa: PTH113 - any text may be asked for
                yield from _contents(name, [path])
        formed = [_formed(node) for node in self.nodes if isinstance(node, ast.JoinedStr | ast.BinOp)]
        patterns = {_PLACE.sub("*", text) for text in (*formed, *self.texts)} - {*written}
        meant = [pattern for pattern in patterns if "*" in pattern and _PATTERN.fullmatch(pattern)]
        several = [(folder, name) for folder, name in product(folders, meant) if not name.startswith(_OF_MACHINE)]
        lists, around = not self.words.isdisjoint(_LISTS), self.around
        whole = [folder for folder in folders if lists or any((folder / name).is_file() for name in _SAVED)]
        several += [(folder, _ALL) for folder in whole if folder not in around and folder.name not in written]
        for folder, pattern in several:
            deep = "/" in pattern.partition("*")[0]  # not through the whole current folder
            names = iglob(pattern, root_dir=folder, recursive=deep)  # noqa: PTH207 - a pattern may be absolute
            listed = [
                folder / name for name in islice(_within(folder) if pattern == _ALL else names, _MOST_LISTED)
            ]
            data = [file for file in listed if not file.suffix.startswith(".py") and file.name not in written]
            yield from _contents(pattern, [file for file in data if file.is_file()], folder)


def _within(folder: Path) -> Iterator[str]:
    """Yield the files in a folder but for hidden ones and what runs leave, which is another with each run."""
    for at, inside, names in os.walk(folder, followlinks=True):
        begun = any(map(_OF_RUNS.fullmatch, inside)) and os.path.isdir(f"{at}/../.store")  # noqa: PTH112 - as above
        is_of_runs = begun or os.path.isfile(f"{at}/latest/plan.json")  # noqa: PTH113 - as above
        inside[:] = [] if is_of_runs else [name for name in inside if not name.startswith(".")]
        shown = [] if is_of_runs else [name for name in names if not name.startswith(".")]
        yield from (os.path.relpath(f"{at}/{name}", folder) for name in shown)


def _contents(name: str, files: Iterable[Path], folder: Path | None = None) -> Iterator[str]:
    """Yield the content of files, each with its path in a folder, if it is in one."""
    for file in files:
        with suppress(OSError):  # the reader will report this
            yield f"{name} {file.relative_to(folder) if folder else '.'} {file_sha256(file, follow=True)}"


def _dotenv(files: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Yield the variables of the file ``.env`` nearest to each module, and to the current folder."""
    for folder in {Path.cwd(), *(file.absolute().parent for file in files)}:
        with suppress(OSError, StopIteration):
            nearest = next(file for above in (folder, *folder.parents) if (file := above / ".env").is_file())
            yield from _SET.findall(nearest.read_text(errors="replace"))


def _is_named(variable: str, texts: Collection[str]) -> bool:
    """Return whether texts name an environment variable, or the start or end of its name, such as ``APP_``."""
    starts = tuple(text for text in texts if len(text) > 2 and text.endswith("_"))
    ends = tuple(text for text in texts if len(text) > 2 and text.startswith("_"))
    return variable in texts or variable.startswith(starts) or variable.endswith(ends)


def _parts(value: str | bytes) -> set[str]:
    """Return a text and its parts that may name something."""
    text = value if isinstance(value, str) else value.decode(errors="ignore")
    if len(text) > _LONGEST_NAME or not text.isprintable():
        return set()
    parts = {part for part in (text, *_PLACE.split(text), *text.split()) if re.search(r"\w", part)}
    return parts | {part.strip("/") for part in parts} | {os.path.expanduser(part) for part in parts}  # noqa: PTH111


def _formed(node: ast.expr) -> str:
    """Return a composed text, with ``*`` for parts that are not texts in the code."""
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


class _Written:
    """Finds texts that name files which code writes: in calls that write, and in the values of names used there.

    Attributes:
        texts: The texts found.
    """

    def __init__(self, nodes: Sequence[ast.AST]) -> None:
        self.texts: set[str] = set()
        self._calls: list[ast.Call] = []
        self._within: dict[ast.AST, ast.AST] = {}  # node -> the innermost function that contains it
        self._made: dict[tuple[ast.AST | None, str], list[ast.AST]] = {}  # (function, name) -> its possible values
        self._seen: set[ast.AST] = set()
        literals = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        self._keeps = any(map(_KEEPS.search, literals))
        for node in nodes:
            if isinstance(node, _FUNCTIONS):
                self._within |= dict.fromkeys((inner for line in node.body for inner in ast.walk(line)), node)
        for node in nodes:
            self._bind(node)
        for call in self._calls:
            for target in self._places(call):
                self._follow(target)

    def _bind(self, node: ast.AST) -> None:
        """Record which values a node binds to names."""
        if isinstance(node, ast.Call):
            self._calls.append(node)
        if isinstance(node, ast.keyword):
            self._made.setdefault((None, str(node.arg)), []).append(node.value)
        if isinstance(node, ast.Return) and node in self._within:
            self._made.setdefault((None, getattr(self._within[node], "name", "")), []).append(node)
        targets = [
            *getattr(node, "targets", ()),
            *(getattr(node, attribute, None) for attribute in ("target", "optional_vars")),
        ]
        values = [getattr(node, attribute, None) for attribute in ("value", "iter", "context_expr")]
        for named in (part for target in targets if target for part in ast.walk(target) if _last_name(part)):
            owner = self._within.get(named) if isinstance(named, ast.Name) else None
            self._made.setdefault((owner, _last_name(named)), []).extend(filter(None, values))

    def _places(self, call: ast.Call) -> list[ast.AST]:
        """Return the targets that a call writes to; empty if it does not write."""
        name, args = _last_name(call.func), [*call.args, *(keyword.value for keyword in call.keywords)]
        if name in _WRITES:
            return [call.func]
        modes = (node.value for node in args if isinstance(node, ast.Constant) and isinstance(node.value, str))
        if name == "open" and any(map(_MODE.fullmatch, modes)):
            return [call.func, *args]
        dotted = f"{_last_name(getattr(call.func, 'value', None))}.{name}"
        if name == "dump" and len(call.args) > 1:
            args = args[1:]  # the dumped object comes first
        writes = _WRITES_TO.fullmatch(name) or _WRITES_TO.fullmatch(dotted) or (name == "connect" and self._keeps)
        return [*args] if writes else []

    def _follow(self, target: ast.AST) -> None:
        for node in ast.walk(target):
            if node in self._seen:
                continue
            self._seen.add(node)
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                self.texts |= _parts(node.value)
            if isinstance(node, ast.JoinedStr | ast.BinOp):
                self.texts.add(_PLACE.sub("*", _formed(node)))
            name, owner = _last_name(node), self._within.get(node)
            if name and isinstance(node, ast.Name | ast.Attribute):
                values = self._made.get((owner, name)) if isinstance(node, ast.Name) else None
                for value in [*(values or self._made.get((None, name), [])), *self._arguments_for(owner, name)]:
                    self._follow(value)

    def _arguments_for(self, function: ast.AST | None, name: str) -> Iterator[ast.AST]:
        """Yield the arguments passed for a parameter of a function."""
        if not isinstance(function, _FUNCTIONS):
            return
        named = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        if name not in {*named, *(argument.arg for argument in function.args.kwonlyargs)}:
            return
        yield from [*function.args.defaults, *filter(None, function.args.kw_defaults)]
        at = named.index(name) - (named[0] in {"self", "cls"}) if name in named else len(named)
        for call in self._calls:
            # A class is called by its own name, not by that of its method.
            if function.name in {_last_name(call.func), "__init__"}:
                yield from call.args[at : at + 1]
                yield from (keyword.value for keyword in call.keywords if keyword.arg == name)


def _imports(module: _Module, node: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Yield what a statement imports: a module, a name in it or "", and the name that it binds."""
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
    """Return the names that a statement binds if it does nothing else.

    None if it does more, or if that is unknown.

    A block that runs only if the module is the main program binds none.
    """
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            # A decorator may register it, and then code reaches it without its name.
            used = [node.func if isinstance(node, ast.Call) else node for node in statement.decorator_list]
            called = set(map(_last_name, used))
            return {statement.name} if called <= _HARMLESS and not statement.name.startswith("__") else None
        case ast.If(test=test) if ast.unparse(test) == "__name__ == '__main__'":
            return set()
        case ast.Assign(targets=targets):
            nodes = [node for target in targets for node in ast.walk(target)]
            plain = all(isinstance(node, ast.Name | ast.Tuple | ast.List | ast.expr_context) for node in nodes)
            return {node.id for node in nodes if isinstance(node, ast.Name)} if plain else None
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return None


def _text(statement: ast.stmt, *, with_docstrings: bool) -> str:
    """Return the code of a statement without comments and layout, and without docstrings unless they are used."""
    for node in ast.walk(statement) if not with_docstrings else ():
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [line for line in body if not _is_said(line)] or [ast.Pass()]  # type: ignore[attr-defined]
    return "" if _is_said(statement) and not with_docstrings else ast.unparse(statement)


def _is_said(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None) if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
