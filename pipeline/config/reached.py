"""What code of the user's own a name reaches, as text without comments: from its definition on, through modules.

Read from the source, and never run. Of each module there count the definitions that are reached, and whatever else
it does when it is imported: assignments to parts of objects, calls, loops, branches. So do files and variables of
the environment that it reads and that stand in it by name. What is found while the code runs cannot be seen, as
modules and names that are computed.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.files import file_sha256

Find = Callable[[str], Path | None]
"""Takes the dotted name of a module and gives its file, or None where it is not the user's own."""
_COMPUTED = {"__import__", "eval", "exec", "getattr", "globals", "import_module", "locals", "setattr", "vars"}
"""Functions by which code may reach what does not stand in it: all of its module is taken to be reached then."""
_READS = {
    "open",
    "read_text",
    "read_bytes",
    "read_csv",
    "read_json",
    "read_parquet",
    "load",
    "loadtxt",
    "genfromtxt",
}
_WRITES = {"write", "writelines", "write_text", "write_bytes", "dump", "save", "to_csv", "to_json", "FileHandler"}
"""Of a module that writes files it cannot be told which of them are its data."""
_LONGEST_NAME = 60
"""Characters of a file's name; systems take 255 bytes."""
_SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
"""In the names of variables that give access and change no result."""
_IMPORTS = {"__import__", "import_module", "resolve_name"}
_ALL = "*"


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


def reached_hash(module: str, name: str, find: Find) -> str | None:
    """A hash of all code that a name of a module reaches; None where the module is not the user's own.

    Args:
        module: Dotted name.
        name: Of a function, class or object in it; of a part of one, with dots.
        find: Finds files of modules.
    """
    walk = _Walk(find)
    walk.visit(module, name.partition(".")[0])
    if not walk.modules:
        return None
    texts = (
        f"{each.name}\n" + "\n".join(_text(each.statements[at]) for at in sorted(each.taken))
        for each in sorted(walk.modules.values(), key=lambda each: each.name)
    )
    read = [line for each in walk.modules.values() for line in _read_by(each)]
    return hashlib.sha256("\n\0".join([*texts, *sorted(walk.unread), *sorted(read)]).encode()).hexdigest()[:16]


def _read_by(module: _Module) -> Iterator[str]:
    """What a module reads that stands in it by name: files beside it or in the current folder, and variables."""
    nodes = [node for at in module.taken for node in ast.walk(module.statements[at])]
    called = {_last_name(node.func) for node in nodes if isinstance(node, ast.Call)}
    texts = {text for node in nodes if (text := _constant(node)) and len(text) <= _LONGEST_NAME}
    if called & _READS and not called & _WRITES:
        folders = [module.file.parent, Path()]
        folders += [folder / text for folder in folders for text in texts if (folder / text).is_dir()]
        for text in sorted(texts | {text.strip("/") for text in texts}):  # f"{folder}/words.txt"
            for path in [folder / text for folder in folders if (folder / text).is_file()][:1]:
                with suppress(OSError):  # who reads it will tell
                    yield f"{module.name} {text} {file_sha256(path, follow=True)}"
    for node in nodes:
        match node:
            case ast.Subscript(value=within, slice=ast.Constant(value=str(name)), ctx=ast.Load()):
                asked = _last_name(within) == "environ"
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
                asked = _last_name(function) == "getenv" or (
                    _last_name(function) == "get" and _last_name(getattr(function, "value", None)) == "environ"
                )
            case _:
                continue
        if asked and name in os.environ and not _SECRET.search(name):
            yield f"${name}={os.environ[name]}"


def _last_name(node: object) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _constant(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


class _Walk:
    """A walk through modules, from a name on.

    Attributes:
        modules: Those of the user's own that are reached.
        unread: What is covered as bytes, since it is no Python that can be read.
    """

    def __init__(self, find: Find) -> None:
        self.modules: dict[str, _Module] = {}
        self.unread: list[str] = []
        self._find = find
        self._known: dict[str, _Module | None] = {}
        self._visited: set[tuple[str, str]] = set()

    def visit(self, name: str, wanted: str = "") -> None:
        """Take a name of a module, all of it for ``*``, and what importing it does; with its packages."""
        if (name, wanted) in self._visited:
            return
        self._visited.add((name, wanted))
        if parent := name.rpartition(".")[0]:
            self.visit(parent)
        module = self._module(name)
        if module is None:
            return
        at = list(module.always)
        if wanted == _ALL:
            at = list(range(len(module.statements)))
        elif wanted in module.binding:
            at += module.binding[wanted]
        elif wanted and self._module(f"{name}.{wanted}"):
            self.visit(f"{name}.{wanted}")
        elif wanted:
            at += module.binding.get("__getattr__", [])
        for place in at:
            self._take(module, place)
        # What it has imported itself it may hand on.
        for handed in module.binding if wanted == _ALL else {wanted} & module.binding.keys():
            for place in module.binding[handed]:
                self._through(module, module.statements[place], handed, [ast.Name(handed)])

    def _module(self, name: str) -> _Module | None:
        if name not in self._known:
            file = self._find(name)
            self._known[name] = None if file is None else self._read(name, file)
            if (found := self._known[name]) is not None:
                self.modules[name] = found
        return self._known[name]

    def _read(self, name: str, file: Path) -> _Module:
        content, module = file.read_bytes(), _Module(name, file)
        try:
            module.statements = ast.parse(content).body if file.suffix == ".py" else []
        except (SyntaxError, ValueError):  # importing it will tell
            self.unread.append(f"{name} {hashlib.sha256(content).hexdigest()}")
        if file.suffix != ".py":
            self.unread.append(f"{name} {hashlib.sha256(content).hexdigest()}")
        for at, statement in enumerate(module.statements):
            names = _bound(statement)
            for bound in names or ():
                module.binding.setdefault(bound, []).append(at)
            if not names or isinstance(statement, ast.Import | ast.ImportFrom):
                module.always.append(at)
        return module

    def _take(self, module: _Module, at: int) -> None:
        if at in module.taken:
            return
        module.taken.add(at)
        statement = module.statements[at]
        nodes = list(ast.walk(statement))
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                # One at the top hands on only what is used; one inside of a function is taken with what it names.
                self._imported(module, node, nodes, hands_on=node is not statement)
            if isinstance(node, ast.Call) and _last_name(node.func) in _IMPORTS and node.args:
                self.visit(_constant(node.args[0]), _ALL)
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)} & _COMPUTED
        if names & _COMPUTED and not names & set(module.binding) & _COMPUTED:
            self.visit(module.name, _ALL)
        for used in sorted(names):
            for place in module.binding.get(used, ()):
                self._take(module, place)
                self._through(module, module.statements[place], used, nodes)

    def _through(self, module: _Module, statement: ast.stmt, used: str, nodes: list[ast.AST]) -> None:
        """Follow a name that a statement at the top of a module has imported."""
        if isinstance(statement, ast.Import | ast.ImportFrom):
            self._imported(module, statement, nodes, only=used, hands_on=True)

    def _imported(
        self,
        module: _Module,
        node: ast.Import | ast.ImportFrom,
        nodes: list[ast.AST],
        *,
        only: str = "",
        hands_on: bool,
    ) -> None:
        if isinstance(node, ast.ImportFrom):
            source = _source(module, node)
            for alias in node.names:
                bound = alias.asname or alias.name
                if alias.name == _ALL:
                    self.visit(source, _ALL)
                elif not only or bound == only:
                    self.visit(source, alias.name if hands_on else "")
            return
        for alias in node.names:
            bound = alias.asname or alias.name.partition(".")[0]
            if only and bound != only:
                continue
            self.visit(alias.name)
            if hands_on:
                for target, wanted in _uses(nodes, bound, alias.name if alias.asname else bound, self._module):
                    self.visit(target, wanted)


def _uses(
    nodes: list[ast.AST], bound: str, module: str, known: Callable[[str], _Module | None]
) -> Iterator[tuple[str, str]]:
    """Modules and names in them that nodes use of an imported module: ``a.b.c`` is c of a.b where that is one."""
    chains = [chain for node in nodes if (chain := _chain(node)) and chain[0] == bound]
    parts = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    if any(isinstance(node, ast.Name) and node.id == bound and id(node) not in parts for node in nodes):
        yield module, _ALL  # it is handed on as it is
    for _, *names in chains:
        target = module
        while names and known(f"{target}.{names[0]}"):
            target = f"{target}.{names.pop(0)}"
        yield target, names[0] if names else ""


def _chain(node: ast.AST) -> list[str]:
    """The names of ``a.b.c``; nothing of what does not begin with a name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if isinstance(node, ast.Name) and names else []


def _source(module: _Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    around = module.package.split(".")
    around = around[: len(around) - node.level + 1]
    return ".".join([*around, *([node.module] if node.module else [])])


def _bound(statement: ast.stmt) -> set[str] | None:
    """Names that a statement binds and nothing else; None for one that does more, or what cannot be told."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            # Decorators may register it somewhere, from where it is reached by no name.
            return None if statement.decorator_list and not _harmless(statement) else {statement.name}
        case ast.Import() | ast.ImportFrom():
            return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
        case ast.Assign(targets=targets):
            found = [_targets(target) for target in targets]
            return None if any(each is None for each in found) else {name for each in found for name in each or ()}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return None


def _harmless(statement: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    known = {"dataclass", "cache", "lru_cache", "wraps", "contextmanager", "total_ordering", "staticmethod"}
    each = [one.func if isinstance(one, ast.Call) else one for one in statement.decorator_list]
    return all((one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "")) in known for one in each)


def _targets(target: ast.expr) -> set[str] | None:
    if isinstance(target, ast.Name):
        return {target.id}
    if isinstance(target, ast.Tuple | ast.List):
        found = [_targets(each) for each in target.elts]
        return None if any(each is None for each in found) else {name for each in found for name in each or ()}
    return None


def _text(statement: ast.stmt) -> str:
    """The code of a statement: comments and layout are not in it, nor are texts that say what it does."""
    for node in ast.walk(statement):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [each for each in body if not _is_said(each)]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
    return "" if _is_said(statement) else ast.unparse(statement)


def _is_said(statement: ast.stmt) -> bool:
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
        return False
    return isinstance(statement.value.value, str)
