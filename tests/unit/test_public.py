"""What programs of a user's own import comes from `pipeline` itself."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pipeline

ROOT = Path(pipeline.__file__).parents[1]
TAUGHT = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", *sorted((ROOT / "examples").glob("*.py"))]
"""What shows users how to import."""


def shown_to_type_checkers() -> set[str]:
    tree = ast.parse(Path(pipeline.__file__).read_text())
    return {
        alias.name
        for node in tree.body
        if isinstance(node, ast.If)
        for line in node.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }


def test_every_name_is_found() -> None:
    assert [name for name in pipeline.__all__ if getattr(pipeline, name, None) is None] == []


def test_type_checkers_see_the_same_names() -> None:
    assert shown_to_type_checkers() == set(pipeline.__all__) <= set(dir(pipeline))


def test_an_unknown_name_is_refused_as_of_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'pipeline' has no attribute 'Algoritm'"):
        pipeline.Algoritm  # noqa: B018


def test_what_is_written_at_the_head_of_a_file_imports_no_torch() -> None:
    names = (
        "Algorithm, Dataset, DatasetConfig, JobContext, PITA, PostTrainingAlgorithms, QSharp, Read, RewardTraits, "
        "Row, Stage, ValueAlgoConfig, ValueGuidedAlgorithms, load_config, number, reward, select_gpus"
    )
    code = f"from pipeline import {names}\nimport sys; assert not {{'torch', 'transformers'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def inner_imports(path: Path) -> Iterator[str]:
    """Modules of the package that it imports; that for trials of a sweep is public, and holds one function."""
    found = re.findall(r"(?:from|import) (pipeline\.[\w.]+)", path.read_text())
    yield from (name for name in found if name != "pipeline.sweeps")


def test_docs_and_examples_import_from_nowhere_else() -> None:
    assert [(path.name, name) for path in TAUGHT for name in inner_imports(path)] == []


def test_docs_name_all_that_imports_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\nimport pipeline\n"
        "for name in pipeline.__all__:\n    try: getattr(pipeline, name)\n    except ImportError: print(name)"
    )
    heavy = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    page = (ROOT / "docs" / "extending.md").read_text()
    named = page[page.index("What works on models does") : page.index("imports them all")]
    assert set(heavy) == set(re.findall(r"`(\w+)`", named)) - {"TYPE_CHECKING"}
