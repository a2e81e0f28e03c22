"""What code of the user's own a name reaches, as text without comments: from its definition on, through modules.

Read from the source, and never run. Of each module there count the definitions that are reached, and whatever else
it does when it is imported: assignments to parts of objects, calls, loops, branches. So does what its texts name:
files, variables of the environment and modules, whichever function then reads them. Where the name of a module is
computed, all modules count that lie beside the code or in a folder that its texts name. What else is found while
the code runs cannot be seen, as computed names of files.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.files import file_sha256

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
_VARIABLES = {"environ", "environb", "expandvars", "getenv"}
_SAID = {"__doc__", "from_callable", "get_json_schema", "getdoc", "model_json_schema", "signature"}
"""By which it may use what functions and classes say of themselves."""
_WRITES = re.compile(
    r"\b(write\w*|dump|save\w*|to_(csv|json|parquet|pickle)|\w*FileHandler|basicConfig)\(|\b(sqlitedict|shelve)\b"
    r"|\bopen\((.*, )?(mode=)?'[rbt]*[wax+][bt+]*'|INSERT INTO|INSERT OR"
)
"""Of a module that writes files it cannot be told which of them are its data."""
_SPLITS = "dataset_dict.json"
_SAVED = {"config.json", "adapter_config.json", "tokenizer_config.json", "dataset_info.json", _SPLITS}
"""In folders of models, tokenizers and datasets, which libraries read as a whole."""
_LONGEST_NAME = 1000
"""Characters of a path."""
_SIGN = re.compile(r"%[sd]|\{\w*\}|\$")
"""In a text, where something else is put."""
_OUTSIDE = re.compile(
    "(KEY|TOKEN|SECRET|PASSWORD|^RANK|(LOCAL|NODE|GROUP|ROLE)_RANK|WORLD_SIZE|_THREADS|VISIBLE_DEVICES)$"
    "|^(CUDA|CUBLAS|GLOO|MASTER|NCCL|OMPI|PMI|PMIX|PYTHON|PYTORCH|RAY|SLURM|TORCH|TORCHELASTIC|WANDB)_"
    "|^(COLORTERM|COLUMNS|(FORCE|NO)_COLOR|HOME|HOSTNAME|LANG|LC_[A-Z]+|LINES|LOGNAME|PATH|PWD|PYTHON[A-Z]*|SHELL)$"
    "|^(TERM|TMPDIR|TOKENIZERS_PARALLELISM|USER|XDG_[A-Z]+_HOME)$",
    re.IGNORECASE,
)
"""Variables that give access, or that say where a process is and whose: they change no result, and workers
have others."""
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

    @property
    def nodes(self) -> list[ast.AST]:
        """Of what is taken."""
        return [node for at in self.taken for node in ast.walk(self.statements[at])]

    @property
    def texts(self) -> list[str]:
        """That stand in what is taken, but for names of variables that it sets."""
        nodes = self.nodes
        stored = {
            id(node.slice) for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
        }
        found = set(_constants(node for node in nodes if id(node) not in stored))
        return sorted(found | {each.strip("/") for each in found} | {os.path.expanduser(each) for each in found})  # noqa: PTH111

    @property
    def folders(self) -> list[Path]:
        """Its own, the one around it and the current one, and those in them that texts name."""
        near, texts = dict.fromkeys([self.file.parent, self.file.absolute().parent.parent, Path()]), self.texts
        for _ in range(2):
            near |= {Path(at, name): None for at in near for name in texts if os.path.isdir(Path(at, name))}  # noqa: PTH112
        return list(near)

    @property
    def beside(self) -> Iterator[str]:
        """Modules that a computed name may mean: those in its folder, and in folders that texts name."""
        nodes = self.nodes
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        plain = {id(node.func) for node in calls if all(map(self._is_plain, node.args)) and not node.keywords}
        if all(_imports(node) not in _IMPORTS or id(node) in plain for node in nodes):
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
        return f"{self.name}\n" + "\n".join(_text(self.statements[at], said=said) for at in sorted(self.taken))


def reached_hash(module: str, name: str, find: Find) -> str | None:
    """A hash of all code that a name of a module reaches; None where the module is not the user's own.

    Args:
        module: Dotted name.
        name: Of a function, class or object in it; of a part of one, with dots.
        find: Finds files of modules.
    """
    walk = _Walk(find)
    walk.visit(module, name.partition(".")[0])
    walk.follow_texts()
    if not walk.modules:
        return None
    modules = sorted(walk.modules.values(), key=lambda each: each.name)
    texts = [each.text(said=bool(walk.words & _SAID)) for each in modules]
    read = {line for each, text in zip(modules, texts, strict=True) for line in _files(each, text)}
    if walk.words & _VARIABLES:
        named = {
            name for each in modules for name in each.texts if name in os.environ and not _OUTSIDE.search(name)
        }
        read |= {f"${name}={os.environ[name]}" for name in named}
    return hashlib.sha256("\n\0".join([*texts, *sorted(walk.unread), *sorted(read)]).encode()).hexdigest()[:16]


def _files(module: _Module, text: str) -> Iterator[str]:
    """The files that texts of a module name, and those of folders that libraries read as a whole."""
    if _WRITES.search(text):
        return
    for folder in module.folders:
        for name in module.texts:
            place = Path(folder, name)
            within = [place] if os.path.isfile(place) else []  # noqa: PTH113 - any text may be asked for
            if found := [each for each in _SAVED if os.path.isfile(place / each)]:  # noqa: PTH113
                within = sorted(each for each in place.glob("*/*" if _SPLITS in found else "*") if each.is_file())
            for file in within:
                with suppress(OSError):  # who reads it will tell
                    yield f"{module.name} {name} {file.relative_to(place)} {file_sha256(file, follow=True)}"


def _last_name(node: object) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _imports(node: ast.AST) -> str:
    """The name by which a node may import something, be it under another."""
    return node.name if isinstance(node, ast.alias) and node.asname else _last_name(node)


def _constants(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The texts that may name something, their words, and what stands before and behind what is put in."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            value = node.value if isinstance(node.value, str) else node.value.decode(errors="ignore")
            if len(value) <= _LONGEST_NAME and value.isprintable():
                yield from (
                    each for each in (value, *_SIGN.split(value), *value.split()) if re.search(r"\w", each)
                )


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
        self._further: list[str] = []

    @property
    def words(self) -> set[str]:
        """Names that stand in what is taken."""
        nodes = [node for module in self.modules.values() for node in module.nodes]
        return {str(getattr(node, each, "")) for node in nodes for each in ("attr", "id", "name")}

    def follow_texts(self) -> None:
        """Take what is reached by texts too, or by being there, until nothing more is."""
        seen = -1
        while seen < (seen := len(self._visited) + len(self._further)):
            words, modules = self.words, list(self.modules.values())
            texts = sorted({text for module in modules for text in module.texts})
            if words & _FAMILIES:
                for module in modules:
                    self.visit(module.name, _ALL)
            if words & _IMPORTS or "-m" in texts:
                for text in texts:
                    name = text.replace(":", ".")
                    packages = {module.package for module in modules} if name.startswith(".") else {""}
                    for whole in (f"{package}{name}" for package in packages):
                        for each in (whole, whole.rpartition(".")[0], f"{whole}.__main__"):
                            if re.fullmatch(r"\w+(\.\w+)*", each):
                                self.visit(each, _ALL)
                for module in modules:
                    for each in sorted(module.beside):
                        self.visit(each, _ALL)
            if words & _FOLDERS and "sys" in words:
                self._further = list(dict.fromkeys(str(each) for module in modules for each in module.folders))
                lacking = {each for each in self._visited if self._known.get(each[0]) is None}
                self._visited -= lacking
                self._known = {name: each for name, each in self._known.items() if each is not None}
                for name, wanted in sorted(lacking):
                    self.visit(name, wanted)

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
            file = self._find(name, self._further)
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
                    if hands_on and self._module(whole := f"{source}.{alias.name}"):
                        self._used(nodes, bound, whole)
            return
        for alias in node.names:
            bound = alias.asname or alias.name.partition(".")[0]
            if only and bound != only:
                continue
            self.visit(alias.name)
            if hands_on:
                self._used(nodes, bound, alias.name if alias.asname else bound)

    def _used(self, nodes: list[ast.AST], bound: str, module: str) -> None:
        """Take what nodes use of an imported module: ``a.b.c`` is c of a.b where that is one."""
        chains = [(id(node), chain[1:]) for node in nodes if (chain := _chain(node)) and chain[0] == bound]
        parts = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        named = [node for node in nodes if isinstance(node, ast.Name) and node.id == bound]
        if not named or any(id(node) not in parts for node in named):
            self.visit(module, _ALL)  # it is handed on as it is, or is part of a class
        for node, names in chains:
            target = module
            while names and self._module(f"{target}.{names[0]}"):
                target = f"{target}.{names.pop(0)}"
            self.visit(target, names[0] if names else "" if node in parts else _ALL)


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


def _text(statement: ast.stmt, *, said: bool) -> str:
    """The code of a statement: no comments and layout, nor, unless used, texts that say what it does."""
    if said:
        return ast.unparse(statement)
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
