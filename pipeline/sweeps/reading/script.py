"""What the script of a trial does with W&B, by its text alone: whether it searches itself, or takes no parameters.

Only the script is read, and not what it imports; what stands under a condition counts as not done.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config.bounds import LARGEST_FILE
from pipeline.errors import ConfigError
from pipeline.foreign import read_plain
from pipeline.sweeps.space import Choice, Constant, Parameter
from pipeline.sweeps.spec import Sweep

_SEARCH = ("sweep", "agent")
_SWEEP_ID, _MODE = "WANDB_SWEEP_ID", "WANDB_MODE"
_GIVES = "${args"
"""How all macros begin that have the parameters of a trial."""
_WITH_FALSE = {"${args}", "${args_no_equals}"}
"""Those that write --name=False for argparse."""


@dataclass
class Script:
    """What a script says of W&B.

    Attributes:
        searches: Where it begins a sweep or an agent of W&B whatever it is told: name of the call -> line.
        function: What it has that agent call; "" where it is not said.
        asks: Line at which it asks whether it is in a sweep; 0 for nowhere.
        reads: Whether it reads the settings of a run of W&B.
        always_true: Options of argparse of ``type=bool``, which takes any text but "" for true: name -> line.
        imports: Whether it imports wandb.
    """

    searches: dict[str, int] = field(default_factory=dict)
    function: str = ""
    asks: int = 0
    reads: bool = False
    always_true: dict[str, int] = field(default_factory=dict)
    imports: bool = False


def check_script(sweep: Sweep) -> None:
    """Refuse a script that begins a sweep of its own in every trial.

    Raises:
        ConfigError: Says what it is to do instead.
    """
    path = _path(sweep.program, *sweep.command)
    script = read_script(sweep.folder / path) if path else Script()
    for name, line in script.searches.items():
        instead = f"call {script.function}()" if script.function else "do what one trial does"
        raise ConfigError(
            f"{path}, line {line}: it calls wandb.{name}, so each trial would begin a search of its own at W&B. "
            f"What that searches belongs in the sweep file, and the script is to {instead} instead: wandb.config "
            "has the parameters of the trial"
        )


def script_notes(sweep: Sweep, environment: Mapping[str, str]) -> Iterator[str]:
    """What is no mistake and yet may leave a script without parameters, or a trial without a value, a line each.

    Args:
        sweep: The sweep.
        environment: Of its agents.
    """
    path = _path(sweep.program, *sweep.command)
    script = read_script(sweep.folder / path) if path else Script()
    if script.asks and _SWEEP_ID not in sweep.options.environment:
        yield (
            f"{path}, line {script.asks}: it asks for the id of a sweep at W&B, and a trial here has none. Where "
            "it takes parameters only if there is one, the sweep file needs pipeline: {environment: "
            f"{{WANDB_SWEEP_ID: {sweep.name}, WANDB_MODE: offline}}}}"
        )
    for name, line in script.always_true.items():
        if _may_be_false(sweep.parameters.get(name)) and not _WITH_FALSE.isdisjoint(sweep.command):
            yield (
                f"{path}, line {line}: argparse takes --{name}=False for true, as type=bool does any text. Say "
                "type=lambda text: text == 'True', or action='store_true' with ${args_no_boolean_flags}"
            )
    if script.imports and {**environment, **sweep.options.environment}.get(_MODE) == "disabled":
        yield (
            f"{_MODE} is disabled: W&B's client writes nothing then, so that trials have no value but by "
            "pipeline.sweeps.log. With offline it writes on this machine alone, and trials are judged by that"
        )
    if path and not script.reads and not any(_GIVES in word for word in sweep.command):
        yield (
            f"`command` has no ${{args}} or the like, and {path} does not read wandb.config: unless something "
            "that it imports does, all trials are the same"
        )


def _may_be_false(parameter: Parameter | None) -> bool:
    match parameter:
        case Parameter(distribution=Constant(value=value)):
            return value is False
        case Parameter(distribution=Choice(values=values)):
            return any(value is False for value in values)
    return False


def _path(*words: str) -> str:
    """The script among the words of a command, as it is given; "" where there is none in Python."""
    return next((word for word in words if word.endswith(".py")), "")


def reads_settings(words: Sequence[str], folder: Path) -> bool:
    """Whether the script of a command reads the settings of a run of W&B.

    Args:
        words: The command.
        folder: Where it is started.
    """
    path = _path(*words)
    return bool(path) and read_script(folder / path).reads


def read_script(path: Path) -> Script:
    """What a script says; nothing where it cannot be read, or is no Python of this version."""
    try:
        tree = ast.parse(read_plain(path, LARGEST_FILE, follow=True))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return Script()
    return _Reader(tree).script


class _Reader:
    """Reads one script."""

    def __init__(self, tree: ast.Module) -> None:
        self.script = Script()
        self._calls: dict[str, str] = {}
        """Names by which the script calls what W&B has: ``wandb.sweep`` -> ``sweep``."""
        self._functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self._known: set[str] = set()
        self._settings = {"wandb.config"}
        for node in ast.walk(tree):
            self._look(node)
        self.script.reads = self.script.reads or any(map(self._reads, _used(tree)))
        self._follow(tree.body)
        if any(name in _SEARCH for name in self._called(tree)):
            self.script.asks = 0  # the id is that of its own sweep

    def _reads(self, node: ast.AST) -> bool:
        match node:
            case ast.Attribute(attr="config", ctx=ast.Load(), value=ast.Call(func=called)):
                return self._calls.get(ast.unparse(called)) == "init"
            case ast.Attribute(attr="config", ctx=ast.Load(), value=ast.Attribute(attr="experiment")):
                return True  # of Lightning's logger
            case ast.Attribute(ctx=ast.Load()):
                return ast.unparse(node) in self._settings
        return False

    def _called(self, tree: ast.AST) -> Iterator[str]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                yield self._calls.get(ast.unparse(node.func), "")

    def _look(self, node: ast.AST) -> None:
        match node:
            case ast.Import(names=names):
                for each in names:
                    self.script.imports = self.script.imports or each.name.split(".")[0] == "wandb"
                    if each.name == "wandb":
                        named = each.asname or each.name
                        self._calls |= {f"{named}.{name}": name for name in (*_SEARCH, "init")}
                        self._settings |= {f"{named}.config", f"{named}.run.config"}
            case ast.ImportFrom(module="wandb", names=names):
                self.script.imports = True
                self._calls |= {each.asname or each.name: each.name for each in names}
                self.script.reads = self.script.reads or any(each.name == "config" for each in names)
            case (
                ast.Assign(targets=[run], value=ast.Call(func=called))
                | ast.AnnAssign(target=run, value=ast.Call(func=called))
                | ast.NamedExpr(target=run, value=ast.Call(func=called))
                | ast.withitem(context_expr=ast.Call(func=called), optional_vars=ast.expr() as run)
            ):
                if ast.unparse(called).endswith(".init"):
                    self._settings.add(f"{ast.unparse(run)}.config")
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=names, keywords=words):
                if any(word.arg == "type" and ast.unparse(word.value) == "bool" for word in words):
                    given = [name.value for name in names if isinstance(name, ast.Constant)]
                    long = [name[2:] for name in given if isinstance(name, str) and name.startswith("--")]
                    self.script.always_true |= dict.fromkeys(long, node.lineno)
            case ast.Attribute(attr="sweep_id") | ast.Constant(value="WANDB_SWEEP_ID"):
                self.script.asks = self.script.asks or node.lineno

    def _follow(self, body: list[ast.stmt]) -> None:
        """Take what is done in any case."""
        for statement in body:
            match statement:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    continue
                case ast.If(test=test, body=inside):
                    if "__name__" in ast.unparse(test):
                        self._follow(inside)
                case ast.With(body=inside) | ast.Try(body=inside) | ast.For(body=inside):
                    self._follow(inside)
                case _:
                    for node in ast.walk(statement):
                        if isinstance(node, ast.Call):
                            self._call(node)

    def _call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func)
        called = self._calls.get(name, "")
        if called in _SEARCH:
            self.script.searches.setdefault(called, node.lineno)
            given = [word.value for word in node.keywords if word.arg == "function"] or node.args[1:2]
            if called == "agent" and given and isinstance(given[0], ast.Name):
                self.script.function = given[0].id
        elif name in self._functions and name not in self._known:
            self._known.add(name)
            self._follow(self._functions[name].body)


def _used(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a script but for what is only printed: whoever prints settings need not follow them."""
    yield tree
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "pprint", "pprint.pprint")):
            yield from _used(node)
