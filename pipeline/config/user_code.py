"""Code that is named by a dotted path, mostly the user's own: importing it, and saying why that fails.

The current folder comes last in `sys.path`, whatever script was started, and workers are given the same list.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from difflib import get_close_matches
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from keyword import iskeyword
from pathlib import Path
from typing import Any, TypeVar

from pipeline.config.reached import reached_hash
from pipeline.errors import ConfigError, JobError, PipelineError, is_installed, own_place, place_of, told

_OURS = "pipeline"
_Answer = TypeVar("_Answer")
_brought_torch: list[str] = []


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
        raise ConfigError(
            f"cannot import '{path}': this is no dotted path. Write my_package.my_module.MyName for what a file "
            "my_package/my_module.py defines, or my_package.my_module:Outer.Inner for a name inside a class; no "
            "part can have a '-'."
        )
    if parts[0] == "__main__":
        raise ConfigError(
            f"cannot import '{path}': workers do not run your script again, so they cannot find what it defines. "
            f"Move {name} to a module of its own and name that."
        )
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
        for at in range(len(inner)):
            inside = spec.submodule_search_locations if spec else None
            name = ".".join([top, *inner[: at + 1]])
            spec = None if inside is None else PathFinder.find_spec(name, list(inside))
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
            raise JobError(
                f"{source_file(path)} was changed after this run had begun, or what it imports, and this job "
                "would have run the new version. Run the same command again: what the change touches is made anew."
            )


def brought_torch() -> tuple[str, ...]:
    """Modules that were imported by `import_object` in this process and were the first to import torch."""
    return tuple(_brought_torch)


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
        raise ConfigError(
            f"{owner}: its config_class {schema.__name__} has no @dataclass(kw_only=True) above it, so that its "
            f"{', '.join(fields)} could not be set"
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


def _look_in_current_folder() -> None:
    """Last, so that no file there takes the place of a module that is installed."""
    folder = str(Path.cwd())
    if "" not in sys.path and folder not in sys.path:
        sys.path.append(folder)


def _import_module(module: str, path: str) -> Any:
    _look_in_current_folder()
    if module not in sys.modules:
        importlib.invalidate_caches()
    had_torch = "torch" in sys.modules
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a module may do anything while it is imported
        name = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
        said = f"cannot import '{path}': {place_of(error)}{type(error).__name__}: {error}"
        missing = name and f"{module}.".startswith(f"{name}.")
        raise ConfigError(_no_such_module(path, name) if missing else said) from error
    if not had_torch and "torch" in sys.modules:
        _brought_torch.append(module)
    return found


def _no_such_module(path: str, missing: str) -> str:
    parent, _, leaf = missing.rpartition(".")
    if parent.partition(".")[0] == _OURS:
        more = "Modules inside of pipeline move: import what you need from pipeline itself, as in pipeline.PITA."
        return f"cannot import '{path}': there is no module '{missing}'. {more}"
    own = (str(Path(entry).resolve()) for entry in sys.path if not is_installed(entry))
    searched = list(getattr(sys.modules[parent], "__path__", ())) if parent else list(dict.fromkeys(own))
    near = _near(leaf, (info.name for info in pkgutil.iter_modules(searched)))
    start = " Start the command in the folder that holds it, or name that folder in PYTHONPATH."
    return (
        f"cannot import '{path}': there is no module '{leaf}' in {', '.join(searched) or parent}.{near}"
        f"{'' if parent else start}"
    )


def _no_such_name(path: str, module: str, name: str, found: Any) -> str:
    names = [each for each in dir(found) if not each.startswith("_")]  # those that are made on use too
    own = [each for each in names if getattr(vars(found).get(each), "__module__", None) == module]
    listed = f" It defines {', '.join(own)}." if own else ""
    file = getattr(sys.modules[module], "__file__", None) or module
    return f"cannot import '{path}': {file} has no '{name}'.{_near(name, names)}{listed}"


def _near(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean '{near[0]}'?" if near else ""
