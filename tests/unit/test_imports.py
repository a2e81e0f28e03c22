"""The package is a house of a few wings: imports point one way, without circles, and few of them reach torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import pipeline

PACKAGE = Path(pipeline.__file__).parent

WINGS = [
    "errors",
    "arithmetic",
    "files",
    "foreign",
    "terminal",
    "machine",
    "outputs",
    "config",
    "learning",
    "plan",
    "engine",
    "gpus",
    "toolbox",
    "vllm",
    "runs",
    "sweeps",
    "slurm",
    "commands",
    "harness",
    "cli",
    "__main__",
]
"""Each may import what stands before it."""
NEVER = {"engine": {"learning"}, "learning": {"terminal"}}
"""The engine runs any plan, and knows nothing of machine learning; what runs in a worker prints to its log."""
ROOMS = {
    "engine": [
        *(
            "run_folder",
            "store",
            "journal",
            "devices",
            "launch_agent",
            "launch",
            "workers",
            "scheduler",
            "run_jobs",
            "keeper",
        )
    ],
    "sweeps": [
        *("reporting", "file", "storage", "search", "command", "metrics"),
        *("trial_process", "plan", "report", "agent", "online", "multi", "rank_zero"),
    ],
}
"""Rooms of a wing that has an order of its own, likewise."""


@cache
def imports(types: bool = False) -> frozenset[tuple[str, str]]:
    """Who imports whom, modules without the name of the package; inside functions too.

    Args:
        types: Whether imports for the type checker alone count too, which are none at run time.
    """
    modules = {_name(path) for path in PACKAGE.rglob("*.py")}
    return frozenset(
        (module, imported if imported in modules else imported.rpartition(".")[0])
        for path in PACKAGE.rglob("*.py")
        for module in [_name(path)]
        for imported in _imported(ast.parse(path.read_text()), types)
        if imported not in ("", "__version__", "look_up")
    )


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(node: ast.AST, types: bool) -> Iterator[str]:
    if not types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "pipeline":
        inside = node.module.partition(".")[2]
        yield from (f"{inside}.{alias.name}".lstrip(".") for alias in node.names)
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[2] for alias in node.names if alias.name.startswith("pipeline."))
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):  # which holds no statement
            yield from _imported(child, types)


def wing(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("name", WINGS)
def test_a_wing_imports_only_what_stands_before_it(name: str) -> None:
    allowed = set(WINGS[: WINGS.index(name) + 1]) - NEVER.get(name, set())
    wrong = [
        f"{module} -> {imported}"
        for module, imported in sorted(imports())
        if wing(module) == name and wing(imported) not in allowed
    ]
    assert not wrong


def test_every_module_belongs_to_a_wing() -> None:
    assert {wing(_name(path)) for path in PACKAGE.rglob("*.py")} == {"", *WINGS}


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_imports_only_what_stands_before_it(name: str) -> None:
    rooms = ROOMS[name]
    inside = [
        (module, imported)
        for module, imported in sorted(imports())
        if wing(module) == wing(imported) == name and "." in module and "." in imported
    ]
    wrong = [
        f"{module} -> {imported}"
        for module, imported in inside
        if rooms.index(module.split(".")[1]) < rooms.index(imported.split(".")[1])
    ]
    assert not wrong


def test_no_modules_import_each_other_in_a_circle_types_included() -> None:
    import networkx as nx  # which collecting all tests need not wait for

    # The package itself imports what it offers, for the type checker.
    graph = nx.DiGraph(pair for pair in imports(types=True) if pair[0] != pair[1] and "" not in pair)
    assert not [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1]


def test_what_decides_about_a_run_reaches_nothing_outside_of_it() -> None:
    """All of the scheduler but those who put a run together, wait, and carry out what was decided."""
    outside = {f"engine.scheduler.{name}" for name in ("run_plan", "loop", "outside")}
    acts = ("engine.store", "engine.journal", "engine.workers.pool", *outside)
    wrong = [
        f"{module} -> {imported}"
        for module, imported in sorted(imports())
        if module.startswith("engine.scheduler.") and module not in outside and imported.startswith(acts)
    ]
    assert not wrong


HEAVY = "torch transformers trl datasets pandas scipy wandb trackio tensorboardX optuna jsonschema"
"""What takes seconds to import, or tenths of them."""
WORK = (
    "pipeline.commands.gpus pipeline.commands.store pipeline.engine.launch pipeline.engine.store pipeline.plan "
    "pipeline.learning.models pipeline.learning.memory.fit pipeline.runs.report pipeline.commands.slurm"
)
"""What commands do, which is imported once one of them is asked for."""


LIGHT = f"{HEAVY} numpy omegaconf"
STEPS = {
    "jobs": [
        ("import pipeline", LIGHT),
        ("import pipeline.engine.workers.entrypoint", f"{LIGHT} psutil difflib random"),
        ("import pipeline.learning.rewards.calling", LIGHT),
        ("import pipeline.learning.algos.stage_entry", f"{HEAVY} hydra networkx"),
        ("import pipeline.cli, pipeline.commands.check", f"{HEAVY} typer pydantic"),
        (
            "import pipeline.commands.run; from pipeline.config.load import load_config; "
            "from pipeline.plan.build import build_plan; build_plan(load_config(['experiment.name=t']))",
            f"{HEAVY} typer pydantic",
        ),
    ],
    "looks": [
        ("import pipeline.__main__", f"{LIGHT} hydra networkx {WORK}"),
        ("import pipeline.commands.launch, pipeline.commands.looking", f"{LIGHT} hydra networkx"),
    ],
}
"""In one process each: what is imported one after the other, and what must not have been by then."""


@pytest.mark.parametrize("steps", STEPS.values(), ids=list(STEPS))
def test_what_takes_long_is_not_imported(steps: list[tuple[str, str]]) -> None:
    checks = [
        f"{statement}\nassert not (found := set({heavy!r}.split()) & set(sys.modules)), ({statement!r}, found)"
        for statement, heavy in steps
    ]
    subprocess.run([sys.executable, "-c", "\n".join(["import sys", *checks])], check=True)
