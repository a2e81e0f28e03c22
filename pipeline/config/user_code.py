"""Code that is named by a dotted path, mostly the user's own: importing it, saying why that fails, what it uses.

The current folder comes last in `sys.path`, whatever script was started, and workers are given the same list.
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
# What code of the user's own a name reaches, as text without comments. Read from the source, and never run.
# Modules count that what counts imports, of which there count all statements that do more than to bind a name,
# as calls and branches, and those that bind one which stands in what counts, in whichever module. So does what
# its texts name: files, variables of the environment and modules, whichever function then reads them. In doubt
# a key covers more than it need to. What else is found while the code runs cannot be seen, as names of files
# that are computed whole.


Find = Callable[[str, Sequence[str]], Path | None]
"""Takes a module's dotted name, and folders besides `sys.path`; gives its file, or None if not the user's own."""
_COMPUTED = {
    *("__dict__", "__import__", "__init_subclass__", "__subclasses__", "attrgetter", "eval", "exec", "getattr"),
    *("getmembers", "globals", "import_module", "locals", "modules", "setattr", "vars"),
}
"""Names by which code may reach what does not stand in it: all of its modules count then."""
_IMPORTS = {
    *("__import__", "get_class", "get_method", "get_object", "import_module", "import_string", "instantiate"),
    *("locate", "resolve_name", "run_module", "run_path", "spec_from_file_location"),
}
"""By which it may import what a text names; where the name is computed, whatever lies beside it."""
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
    r"|SqliteDict|logger\.add|shelve\.open"
)
"""Functions that write to what they are given."""
_MODE = re.compile("[rbt]*[wax+][bt+]*")
"""With which `open` writes."""
_KEEPS = re.compile(r"(INSERT|REPLACE) INTO|INSERT OR", re.IGNORECASE)
"""In code that keeps in the data base that it connects to what it has found."""
_SAVED = (
    "adapter_config.json",
    "config.cfg",
    "config.json",
    "dataset_dict.json",
    "dataset_info.json",
    "modules.json",
)
"""In folders of models and datasets, which libraries read as a whole; as are those of tokenizers."""
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
_PLACE = re.compile(r"%(?:\(\w+\))?[-\d.]*[dfis]|\{[^{}]*\}|\$(?:\w+|\{\w+\})")
"""Where something else is put into a text, as by `format`, `%` and string templates."""
_OUTSIDE = re.compile(
    "(KEY|TOKEN|SECRET|PASSWORD|^RANK|(LOCAL|NODE|GROUP|ROLE)_RANK|WORLD_SIZE|_THREADS|VISIBLE_DEVICES)$"
    "|^(CUDA|CUBLAS|GLOO|MASTER|NCCL|OMPI|PMI|PMIX|PYTHON|PYTORCH|RAY|SLURM|TORCH|TORCHELASTIC|WANDB)_"
    "|^(ATEN|DNNL|HF_HUB_DISABLE|HYDRA_FULL|MKL|NPY|NVIDIA|ONEDNN|OPENBLAS|TRANSFORMERS_SDPA)_"
    "|^(COLORTERM|COLUMNS|(FORCE|NO)_COLOR|HOME|HOSTNAME|LANG|LC_[A-Z]+|LINES|LOGNAME|PATH|PWD|PYTHON[A-Z]*|SHELL)$"
    "|^(_|TERM|TMPDIR|TOKENIZERS_PARALLELISM|USER|XDG_[A-Z]+_HOME)$",
    re.IGNORECASE,
)
"""Variables that give access, or that say where a process is, whose it is and by which arithmetic it computes:
they change no result, or are in keys as what computes, and workers have others."""
_HARMLESS = {"dataclass", "cache", "lru_cache", "wraps", "contextmanager", "total_ordering", "staticmethod"}
"""Decorators that register nothing."""
_IMPORTED: WeakKeyDictionary[ModuleType, bytes] = WeakKeyDictionary()
"""Modules that this process has imported -> their files as first seen."""
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def reached_hash(module: str, name: str, find: Find) -> str | None:
    """Hash all code that a name of a module reaches; None where the module is not the user's own.

    Args:
        module: Dotted name.
        name: Of a function, class or object in it; of a part of one, with dots.
        find: Finds files of modules.
    """
    reached = _Reached(module, name, find)
    if not reached.modules:
        return None
    said = not reached.words.isdisjoint(_SAID)
    texts = [reached.modules[each].text(said=said) for each in sorted(reached.modules)]
    written = _Written(reached.nodes).texts
    variables = reached.variables(written)
    read = {f"${name}={value}" for name, value in variables} | {*reached.files(written, variables)}
    return hashlib.sha256("\n\0".join([*texts, *sorted(read)]).encode()).hexdigest()[:16]


@dataclass
class _Module:
    """A module of the user's own: its statements, and which of them count.

    Attributes:
        bound: What each of them binds, if it does no more; see `_bound`.
        taken: Places of those that count.
        unread: Hash of a file that is no Python which can be read, and so counts as bytes.
    """

    name: str
    file: Path
    statements: list[ast.stmt] = field(default_factory=list)
    bound: list[set[str] | None] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    unread: str = ""

    @property
    def package(self) -> str:
        """What relative imports start from."""
        return self.name if self.file.name == "__init__.py" else self.name.rpartition(".")[0]

    def text(self, *, said: bool) -> str:
        """The code that counts, with or without what it says of itself."""
        texts = (_text(self.statements[at], said=said) for at in sorted(self.taken))
        return "\n".join([self.name, *filter(None, [*texts, self.unread])])


class _Reached:
    """All that a name of a module reaches.

    Attributes:
        modules: Those of the user's own, by name.
        nodes: Of statements that count.
        words: Names that stand there.
        texts: Texts there that may name something, and parts of them; but for variables that are set.
    """

    def __init__(self, module: str, name: str, find: Find) -> None:
        self.modules: dict[str, _Module] = {}
        self.nodes: list[ast.AST] = []
        self.words = {name.partition(".")[0]}
        self.texts: set[str] = set()
        self._find = find
        self._imports: set[tuple[str, str, str, str]] = set()
        self._handed: set[str] = set()  # names that stand before no dot, so that of a module all may be used
        self._asked = {module}
        self._sought: set[str] = set()
        self._whole: set[str] = set()
        self._further: list[str] = []
        known = (self.nodes, self.words, self.modules, self._asked, self._whole)
        sizes: list[int] = []
        while sizes != [*map(len, known)]:
            sizes = [*map(len, known)]
            self._grow()

    def _grow(self) -> None:
        """Take what is known to count now."""
        if self._further != (folders := [*map(str, self.folders)]):  # where modules may be looked for besides
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
        for name in self._whole | self._asked:
            self._visit(name)

    def _take(self, module: _Module, at: int) -> None:
        """Have a statement count."""
        module.taken.add(at)
        nodes = list(ast.walk(module.statements[at]))
        self.nodes += nodes
        names = {node for node in nodes if isinstance(node, ast.Name | ast.Attribute)}
        self.words |= set(map(_last_name, names))
        # A class that registers its subclasses has those that other modules define.
        self.words |= _COMPUTED & {node.name for node in nodes if isinstance(node, _FUNCTIONS)}
        before_a_dot = {node.value for node in names if isinstance(node, ast.Attribute)}
        self._handed |= set(map(_last_name, names - before_a_dot))
        stored = {
            node.slice for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
        }
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and node not in stored:
                self.texts |= _parts(node.value)
            for source, inner, bound in _imports(module, node):
                self._imports.add((module.name, source, inner, bound))
                self._asked |= {source, f"{source}.{inner}"} if inner not in ("", "*") else {source}

    def _visit(self, name: str) -> None:
        """Read a module, and the packages around it, as importing it does; nothing that is not the user's own."""
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
        except (SyntaxError, ValueError):  # importing it will tell
            module.unread = hashlib.sha256(content).hexdigest()
        module.bound = [*map(_bound, module.statements)]

    def _named(self) -> Iterator[str]:
        """Modules that texts name, where a text may be imported; where one is computed, those that it may mean."""
        if self.words.isdisjoint(_IMPORTS) and "-m" not in self.texts:
            return
        packages = {own.package for own in self.modules.values()}
        for text in self.texts:
            name = text.replace(":", ".")
            for package in packages if name.startswith(".") else {""}:
                whole = f"{package}{name}"
                named = [whole, whole.rpartition(".")[0], f"{whole}.__main__"]
                yield from (each for each in named if re.fullmatch(r"\w+(\.\w+)*", each))
        calls = [node for node in self.nodes if isinstance(node, ast.Call) and not node.keywords]
        plain = {call.func for call in calls if all(isinstance(each, ast.Constant) for each in call.args)}
        names = {_last_name(node) for node in self.nodes if node not in plain}
        names |= {inner for _, _, inner, bound in self._imports if inner != bound}
        if not names.isdisjoint(_IMPORTS):
            yield from self._beside()

    def _beside(self) -> Iterator[str]:
        """Modules in folders of those that are reached, and in folders that texts name."""
        texts = [part for each in self.texts for part in (each, each.rpartition(".")[0], each.rpartition("/")[0])]
        named, own = {each.replace(".", "/") for each in texts}, [*self.modules.values()]
        for top in {each.file.parents[each.name.count(".") + (each.file.name == "__init__.py")] for each in own}:
            folders = {top / each for each in named if os.path.isdir(top / each)}  # noqa: PTH112 - any text
            for folder in folders | {each.file.parent for each in own}:
                for file in folder.glob("*.py") if folder.is_relative_to(top) else ():
                    yield ".".join(file.relative_to(top).with_suffix("").parts).removesuffix(".__init__")

    @property
    def around(self) -> set[Path]:
        """Folders of modules, those around them and the current one; the user's, where code asks for that."""
        home = {Path.home()} if "home" in self.words else set()
        files = [each.file.absolute() for each in self.modules.values()]
        return {Path(), *home, *(folder for file in files for folder in (file.parent, file.parent.parent))}

    @property
    def folders(self) -> list[Path]:
        """Those, and the folders in them that texts of any module name."""
        packages = {each.replace(".", "/") for each in self.texts if re.fullmatch(r"\w+(\.\w+)+", each)}
        named, found = sorted(self.texts | packages), dict.fromkeys(sorted(self.around))
        inside = [*found]
        for _ in range(_DEEPEST):
            inside = [at / name for at in inside for name in named if os.path.isdir(at / name)]  # noqa: PTH112
            inside = [each for each in inside if each not in found]
            found |= dict.fromkeys(inside)
        return [each for each in found if not str(each).startswith(_OF_MACHINE)]

    def variables(self, written: Collection[str]) -> list[tuple[str, str]]:
        """Variables that texts name which name nothing that is written, with their values."""
        if self.words.isdisjoint(_VARIABLES):
            return []
        known = [*os.environ.items()]
        if not self.words.isdisjoint(_DOTENV):
            known += _dotenv([each.file for each in self.modules.values()])
        named = {name for text in self.texts - {*written} for name in re.findall(r"\w+", text)}
        if "BaseSettings" in self.words:
            named |= {each.upper() for each in self.words}
        return [each for each in known if _is_named(each[0], named) and not _OUTSIDE.search(each[0])]

    def files(self, written: Collection[str], variables: Iterable[tuple[str, str]]) -> Iterator[str]:
        """The files that texts and values of variables name or mean, and those of folders read as a whole.

        What one names may lie in a folder that another names.

        Args:
            written: Texts that name what is written, and so no data.
            variables: Names and values.
        """
        values = {value for _, value in variables if re.search(r"\w", value)}
        named = {name for name in self.texts | values if re.search(r"\w", name)} - {*written}
        if "with_suffix" in self.words:
            ends = [each for each in named if re.fullmatch(r"\.\w+", each)]
            files = [*named, *(each.file.name for each in self.modules.values())]
            named |= {f"{os.path.splitext(each)[0]}{end}" for each in files for end in ends}  # noqa: PTH122
        if not self.words.isdisjoint(_DOTENV):
            named -= {".env"}  # of which no more counts than its variables do
        folders = [*self.folders, *(Path(each) for each in values if os.path.isdir(each))]  # noqa: PTH112
        for folder, name in product(folders, sorted(named)):
            place = folder / name
            if os.path.isfile(place) and not str(place).startswith(_OF_MACHINE):  # noqa: PTH113 - any text may be asked for
                yield from _contents(name, [place])
        formed = [_formed(node) for node in self.nodes if isinstance(node, ast.JoinedStr | ast.BinOp)]
        patterns = {_PLACE.sub("*", each) for each in (*formed, *self.texts)} - {*written}
        meant = [each for each in patterns if "*" in each and _PATTERN.fullmatch(each)]
        several = [(folder, each) for folder, each in product(folders, meant) if not each.startswith(_OF_MACHINE)]
        lists, around = not self.words.isdisjoint(_LISTS), self.around
        whole = [each for each in folders if lists or any((each / name).is_file() for name in _SAVED)]
        several += [(each, "./**") for each in whole if each not in around and each.name not in written]
        for folder, pattern in several:
            deep = "/" in pattern.partition("*")[0]  # not through all of the current folder
            names = iglob(pattern, root_dir=folder, recursive=deep)  # noqa: PTH207 - a pattern may be absolute
            found = [folder / name for name in islice(names, _MOST_LISTED)]
            data = [each for each in found if not each.suffix.startswith(".py") and each.name not in written]
            yield from _contents(pattern, [each for each in data if each.is_file()], folder)


def _contents(said: str, files: Iterable[Path], folder: Path | None = None) -> Iterator[str]:
    """What the content of files is, each by its place in a folder, if it is of one."""
    for file in files:
        with suppress(OSError):  # who reads it will tell
            yield f"{said} {file.relative_to(folder) if folder else '.'} {file_sha256(file, follow=True)}"


def _dotenv(files: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Variables of the file ``.env`` that is nearest to each module, and to the current folder."""
    for folder in {Path.cwd(), *(each.absolute().parent for each in files)}:
        with suppress(OSError, StopIteration):
            nearest = next(file for each in (folder, *folder.parents) if (file := each / ".env").is_file())
            yield from _SET.findall(nearest.read_text(errors="replace"))


def _is_named(variable: str, texts: Collection[str]) -> bool:
    """Whether texts name a variable of the environment, or begin or end its name, as ``APP_`` does."""
    starts = tuple(each for each in texts if len(each) > 2 and each.endswith("_"))
    ends = tuple(each for each in texts if len(each) > 2 and each.startswith("_"))
    return variable in texts or variable.startswith(starts) or variable.endswith(ends)


def _parts(value: str | bytes) -> set[str]:
    """A text and parts of it, as far as they may name something."""
    text = value if isinstance(value, str) else value.decode(errors="ignore")
    if len(text) > _LONGEST_NAME or not text.isprintable():
        return set()
    found = {each for each in (text, *_PLACE.split(text), *text.split()) if re.search(r"\w", each)}
    return found | {each.strip("/") for each in found} | {os.path.expanduser(each) for each in found}  # noqa: PTH111


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


class _Written:
    """Finds texts that name what code writes: those of calls that write, and of what names in these stand for.

    Attributes:
        texts: They.
    """

    def __init__(self, nodes: Sequence[ast.AST]) -> None:
        self.texts: set[str] = set()
        self._calls: list[ast.Call] = []
        self._within: dict[ast.AST, ast.AST] = {}  # node -> the innermost function that it stands in
        self._made: dict[tuple[ast.AST | None, str], list[ast.AST]] = {}  # function, name -> what it may be
        self._seen: set[ast.AST] = set()
        said = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        self._keeps = any(map(_KEEPS.search, said))
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
        if isinstance(node, ast.Call):
            self._calls.append(node)
        if isinstance(node, ast.keyword):
            self._made.setdefault((None, str(node.arg)), []).append(node.value)
        if isinstance(node, ast.Return) and node in self._within:
            self._made.setdefault((None, getattr(self._within[node], "name", "")), []).append(node)
        targets = [
            *getattr(node, "targets", ()),
            *(getattr(node, each, None) for each in ("target", "optional_vars")),
        ]
        values = [getattr(node, each, None) for each in ("value", "iter", "context_expr")]
        for each in (one for target in targets if target for one in ast.walk(target) if _last_name(one)):
            owner = self._within.get(each) if isinstance(each, ast.Name) else None
            self._made.setdefault((owner, _last_name(each)), []).extend(filter(None, values))

    def _places(self, call: ast.Call) -> list[ast.AST]:
        """What a call writes to; nothing of one that writes nothing."""
        name, given = _last_name(call.func), [*call.args, *(each.value for each in call.keywords)]
        if name in _WRITES:
            return [call.func]
        modes = (each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str))
        if name == "open" and any(map(_MODE.fullmatch, modes)):
            return [call.func, *given]
        dotted = f"{_last_name(getattr(call.func, 'value', None))}.{name}"
        if name == "dump" and len(call.args) > 1:
            given = given[1:]  # what is dumped comes first
        writes = _WRITES_TO.fullmatch(name) or _WRITES_TO.fullmatch(dotted) or (name == "connect" and self._keeps)
        return [*given] if writes else []

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
    """Names that a statement binds and nothing else; None for one that does more, or what cannot be told.

    One for those who start the module as a program binds none.
    """
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            # Decorators may register it somewhere, from where it is reached by no name.
            each = [one.func if isinstance(one, ast.Call) else one for one in statement.decorator_list]
            called = set(map(_last_name, each))
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
