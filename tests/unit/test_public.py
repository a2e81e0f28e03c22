"""What programs of a user's own import comes from `pipeline` itself."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import pipeline
from pipeline import toolbox

ROOT = Path(pipeline.__file__).parents[1]
OFFERED = ("pipeline.gpus", "pipeline.sweeps", "pipeline.toolbox")
TAUGHT = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", *sorted((ROOT / "examples").glob("*.py"))]
"""What shows users how to import."""


def shown_to_type_checkers(module: ModuleType) -> set[str]:
    assert module.__file__
    tree = ast.parse(Path(module.__file__).read_text())
    return {
        alias.name
        for node in tree.body
        if isinstance(node, ast.If)
        for line in node.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }


@pytest.mark.parametrize("module", [pipeline, toolbox])
def test_every_name_is_found_and_shown_to_type_checkers(module: ModuleType) -> None:
    assert [name for name in module.__all__ if getattr(module, name, None) is None] == []
    assert shown_to_type_checkers(module) == set(module.__all__) <= set(dir(module))


def test_an_unknown_name_is_refused_as_of_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'pipeline' has no attribute 'Algoritm'"):
        pipeline.Algoritm  # noqa: B018


def test_public_names_of_the_package_import_no_torch() -> None:
    """`toolbox` holds what does."""
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\nimport pipeline\n"
        "for name in pipeline.__all__: getattr(pipeline, name)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def inner_imports(path: Path) -> Iterator[str]:
    """Modules of the package that it imports; that for trials of a sweep is public, and holds one function."""
    found = re.findall(r"(?:from|import) (pipeline\.[\w.]+)", path.read_text())
    yield from (name for name in found if name not in OFFERED)


def test_docs_and_examples_import_from_nowhere_else() -> None:
    assert [(path.name, name) for path in TAUGHT for name in inner_imports(path)] == []
