"""Imports point one way, and nothing on the engine's side imports torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pipeline

PACKAGE = Path(pipeline.__file__).parent

ENGINE_SIDE = [
    "errors",
    "arithmetic",
    "foreign",
    "descendants",
    "removal",
    "terminal",
    "start",
    "config",
    "plan",
    "results",
    "devices",
    "workers",
    "scheduler",
    "experiment",
    "multirun",
    "usage",
    "cli",
]
"""Each may import what stands to its left."""
MAY_PLAN_WITH = {"algos", "datasets", "rewards"}
"""Worker-side folders with light parts that planning reads."""
WORKER_SIDE = {"models", "datasets", "rewards", "generation", "training", "evaluation", "algos"}
EXEMPT = {"algos/run.py": {"devices"}, "training/strategy.py": {"devices"}, "models/fetch.py": {"start"}}
"""Two modules that choose how ranks share a model, by what `pipeline.devices` says should fit; and a command."""


def imported_parts(path: Path) -> set[str]:
    """Top-level parts of the package that a module imports at run time."""
    found: set[str] = set()
    checking: set[ast.AST] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            checking.update(ast.walk(node))
        if node in checking:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pipeline."):
            found.add(str(node.module).split(".")[1])
        if isinstance(node, ast.Import):
            found.update(name.name.split(".")[1] for name in node.names if name.name.startswith("pipeline."))
    return found


def modules_of(part: str) -> list[Path]:
    folder = PACKAGE / part
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{part}.py"]


@pytest.mark.parametrize("part", ENGINE_SIDE)
def test_the_engine_side_imports_only_what_stands_to_its_left(part: str) -> None:
    allowed = set(ENGINE_SIDE[: ENGINE_SIDE.index(part) + 1])
    if ENGINE_SIDE.index(part) >= ENGINE_SIDE.index("plan"):
        allowed |= MAY_PLAN_WITH
    if part in ("experiment", "multirun", "cli"):
        allowed |= {"report"}
    if part == "experiment":
        allowed |= {"evaluation"}  # which pools what the chains of a run say
    wrong = {str(path): odd for path in modules_of(part) if (odd := imported_parts(path) - allowed)}
    assert not wrong


@pytest.mark.parametrize("part", sorted(WORKER_SIDE))
def test_the_worker_side_does_not_import_the_engine(part: str) -> None:
    allowed = WORKER_SIDE | {"errors", "foreign", "descendants", "removal", "config", "results"}
    wrong = {}
    for path in modules_of(part):
        exempt = EXEMPT.get(path.relative_to(PACKAGE).as_posix(), set())
        if odd := imported_parts(path) - allowed - exempt:
            wrong[str(path)] = odd
    assert not wrong


def test_the_report_reads_plans_and_results_only() -> None:
    wrong = {
        str(path): odd
        for path in modules_of("report")
        if (odd := imported_parts(path) - {"report", "plan", "results", "terminal"})
    }
    assert not wrong


@pytest.mark.parametrize(
    "statement",
    [
        "import pipeline",
        "import pipeline.cli, pipeline.__main__, pipeline.preflight",
        "from pipeline.config.load import load_config; from pipeline.plan.build import build_plan; "
        "build_plan(load_config(['experiment.name=t']))",
    ],
    ids=["package", "command line", "plan"],
)
def test_torch_is_not_imported_by(statement: str) -> None:
    code = f"{statement}\nimport sys\nassert not {{'torch', 'transformers'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
