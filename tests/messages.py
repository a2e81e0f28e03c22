"""The messages of the package's errors, read from its source: their constant words, with `…` for what differs.

A message is what an error of the package is raised with, and what the rules of the configuration yield. Where
another function of the same module makes it, that function's texts are followed. What has no words of its own, as
it only hands on what another one says, is none.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "pipeline"
GAP = "…"
RULES = ("config", "learning", "plan", "sweeps")
"""Wings whose functions yield what is wrong with a request,"""
REPORTS = ("sweeps/report",)
"""but for these rooms, which yield what a reader is told."""
_UNKNOWN = f"unknown {GAP} '{GAP}'. Did you mean '{GAP}'? Known: {GAP}."
"""What `unknown_name` words."""
_KNOWN = _UNKNOWN.partition(".")[2]
"""What `known_names` words."""
_DEEPEST = 3

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def _nodes(path: Path) -> list[tuple[Function | None, ast.AST]]:
    """What a module calls, yields and defines, in the order of its source, and the function it stands in."""
    found: list[tuple[Function | None, ast.AST]] = []
    waiting: list[tuple[Function | None, ast.AST]] = [(None, ast.parse(path.read_text()))]
    while waiting:
        scope, node = waiting.pop()
        if isinstance(node, (ast.Call, ast.Yield, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append((scope, node))
        inside = node if isinstance(node, Function) else scope
        waiting += [(inside, child) for child in reversed([*ast.iter_child_nodes(node)])]
    return found


@cache
def _inside(function: Function) -> list[ast.AST]:
    return [*ast.walk(function)]


@cache
def messages_of(module: str) -> tuple[str, ...]:
    """Messages of a module, in the order of its source.

    Args:
        module: Its path inside of the package, as ``config/checks.py``.
    """
    return tuple(dict.fromkeys(" ".join(text.split()) for text in _Reader(module).texts() if _has_words(text)))


@cache
def all_messages() -> dict[str, tuple[str, ...]]:
    """Module -> its messages, of modules that have any."""
    paths = [path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.rglob("*.py"))]
    return {path: found for path in paths if (found := messages_of(path))}


@cache
def error_classes() -> frozenset[str]:
    """Names of `PipelineError` and of all that is made from it."""
    bases = {
        node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for path in PACKAGE.rglob("*.py")
        for _, node in _nodes(path)
        if isinstance(node, ast.ClassDef)
    }
    found = {"PipelineError"}
    while more := {name for name, of in bases.items() if of & found} - found:
        found |= more
    return frozenset(found)


class _Reader:
    """Finds the texts of one module."""

    def __init__(self, module: str) -> None:
        self._nodes = _nodes(PACKAGE / module)
        self._functions = {node.name: node for _, node in self._nodes if isinstance(node, Function)}
        self._rules = module.startswith(RULES) and not module.startswith(REPORTS)

    def texts(self) -> Iterator[str]:
        for scope, node in self._nodes:
            if isinstance(node, ast.Call) and _name(node.func) in error_classes() and node.args:
                yield from self._of(node.args[0], scope, 0)
            elif isinstance(node, ast.Call) and _name(node.func) == "__init__" and self._in_error(scope):
                yield from (text for argument in node.args[:1] for text in self._of(argument, scope, 0))
            elif isinstance(node, ast.Yield) and self._rules and node.value and _yields_texts(scope):
                yield from self._of(_said(node.value), scope, 0)

    def _in_error(self, scope: Function | None) -> bool:
        return any(
            isinstance(node, ast.ClassDef) and node.name in error_classes() and scope in node.body
            for _, node in self._nodes
        )

    def _of(self, node: ast.expr, scope: Function | None, depth: int) -> list[str]:
        """All that an expression may say."""
        if isinstance(node, ast.Constant):
            return [node.value if isinstance(node.value, str) else GAP]
        if isinstance(node, ast.JoinedStr):
            return [_tidied("".join(p.value if isinstance(p, ast.Constant) else GAP for p in node.values))]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            sides = [self._of(side, scope, depth) for side in (node.left, node.right)]
            return [_tidied(left + right) for left, right in product(*sides)]
        if isinstance(node, ast.IfExp):
            return [*self._of(node.body, scope, depth), *self._of(node.orelse, scope, depth)]
        if isinstance(node, ast.Call) and _name(node.func) == "unknown_name":
            kind = self._of(node.args[0], scope, depth)[0]
            return [_UNKNOWN.replace(GAP, kind, 1)]
        if isinstance(node, ast.Call) and _name(node.func) == "known_names":
            return [_KNOWN]
        if isinstance(node, ast.Call) and depth < _DEEPEST and _name(node.func) in self._functions:
            return self._said_by(self._functions[_name(node.func)], depth + 1)
        if isinstance(node, ast.Name) and scope is not None and depth < _DEEPEST:
            given = [
                each.value for each in _inside(scope) if isinstance(each, ast.Assign) and _sets(each, node.id)
            ]
            return [text for value in given for text in self._of(value, scope, depth + 1)] or [GAP]
        return [GAP]

    def _said_by(self, function: Function, depth: int) -> list[str]:
        values = [
            node.value
            for node in _inside(function)
            if isinstance(node, (ast.Return, ast.Yield)) and node.value is not None
        ]
        return [text for value in values for text in self._of(value, function, depth)] or [GAP]


def _yields_texts(scope: Function | None) -> bool:
    """Whether what a function yields are faults: texts, or places with texts."""
    return scope is not None and scope.returns is not None and ast.unparse(scope.returns) in _FAULTS


_FAULTS = ("Iterator[str]", "Iterator[Fault]")


def _said(value: ast.expr) -> ast.expr:
    """The text of a fault that has a place."""
    return value.elts[-1] if isinstance(value, ast.Tuple) else value


def _sets(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _tidied(text: str) -> str:
    return re.sub(f"{GAP}+", GAP, text)


def _has_words(text: str) -> bool:
    return len(re.findall(r"[A-Za-z]{2,}", text)) > 1
