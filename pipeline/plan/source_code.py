"""The source of the user's own code as part of keys: an edited algorithm, dataset or reward runs again.

Covered is what the class or function that the configuration names reaches in files of the user's own, by its code:
comments and layout change nothing (`config.reached`). What cannot be seen there has `version`.
"""

from __future__ import annotations

import ast
from difflib import get_close_matches
from functools import cache

from pipeline.config.bases import DatasetConfig
from pipeline.config.shipped import REWARD_NAMES
from pipeline.config.user_code import a_file, brought_torch, import_object, source_file, source_hash, split_path
from pipeline.errors import ConfigError
from pipeline.plan.versions import reward_names

_SHIPPED = "pipeline."
_MAKE_NAMES = ("exec", "globals", "locals", "setattr", "vars")
"""Functions by which a module may define names that do not stand in its source."""


def class_source(class_path: str | None) -> dict[str, str | None]:
    """What keys cover of the source of a class by its dotted path: nothing of one that ships.

    Raises:
        ConfigError: There is no such class.
    """
    if class_path is None:
        return {}
    kind = import_object(class_path)
    # A package may hand on what one of its modules defines.
    path = f"{kind.__module__}:{kind.__qualname__}"
    return {} if path.startswith(_SHIPPED) else {path: source_hash(path)}


def dataset_source(dataset: DatasetConfig) -> dict[str, str | None]:
    """What keys cover of the source of a dataset and of its rewards, likewise.

    Rewards are looked at, not imported: they may need what the engine does without.

    Raises:
        ConfigError: A reward does not exist.
    """
    rewards = [
        name for name in reward_names(dataset) if name not in REWARD_NAMES and not name.startswith(_SHIPPED)
    ]
    for path in rewards:
        _check_defined(path)
    return class_source(dataset.class_path) | {path: source_hash(path) for path in rewards}


def import_warnings() -> tuple[str, ...]:
    """What to tell a user whose modules import torch, which makes every start slow."""
    return tuple(
        f"{module} imports torch, or something that does, while the run is being planned. It works, but every "
        "start takes seconds longer, a dry run too: move such imports into the methods that need them, as "
        "pipeline/learning/algos/qsharp.py does."
        for module in brought_torch()
    )


@cache
def _check_defined(path: str) -> None:
    file = source_file(path)
    if file is None:
        return
    try:
        module = ast.parse(file.read_bytes(), str(file))
    except SyntaxError as error:
        raise ConfigError(f"cannot import '{path}': {file}:{error.lineno}: {error.msg}") from error
    names, name = _names(module), split_path(path)[1].partition(".")[0]
    if names is not None and name not in names:
        near = get_close_matches(name, names, n=1, cutoff=0.5)
        own = [node.name for node in module.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        listed = f" It defines {', '.join(own)}." if own else ""
        if name == "py":
            raise ConfigError(f"{a_file(path)}{listed}")
        hint = f" Did you mean '{near[0]}'?" if near else listed
        raise ConfigError(f"cannot import '{path}': {file} has no '{name}'.{hint}")


def _names(module: ast.Module) -> set[str] | None:
    """Names that a module binds anywhere outside of functions and classes; None where that cannot be told."""
    names: set[str] = set()
    pending: list[ast.AST] = list(module.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        if isinstance(node, ast.Name) and (isinstance(node.ctx, ast.Store) or node.id in _MAKE_NAMES):
            names.add(node.id)
        pending.extend(ast.iter_child_nodes(node))
    return None if {"*", "__getattr__", *_MAKE_NAMES} & names else names
