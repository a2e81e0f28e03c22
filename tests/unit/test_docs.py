"""The pages of docs/ are as the code is, in the site, and readable by those who make the site of them."""

import ast
import re
import sys
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import pipeline
from docs.made import on_page_markdown
from pipeline.__main__ import app
from pipeline.commands.help_keys import help_on
from pipeline.config.explain import known_keys
from pipeline.config.meaning import shipped_meanings
from pipeline.learning.from_trl import CONFIGS, OF_ALGORITHM, SHARED, counterparts
from pipeline.slurm.lint import check_script
from pipeline.slurm.script import interpreter
from pipeline.terminal.console import Verdict

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def test_the_page_of_keys_has_every_key_and_default() -> None:
    text = on_page_markdown((DOCS / "keys.md").read_text())
    assert len(text) > 50_000
    lost = [
        key for key in shipped_meanings() if not re.search(rf"`(?:\w+\.)*{re.escape(key.split('.')[-1])}`", text)
    ]
    assert lost == []


def test_the_page_of_public_names_has_all() -> None:
    named = set(re.findall(r"^::: pipeline\.(\S+)", (DOCS / "api.md").read_text(), re.MULTILINE))
    own = set(pipeline.__all__) - {"toolbox", "gpus"}
    boxed = {f"toolbox.{name}" for name in pipeline.toolbox.__all__}
    assert named == own | boxed | {f"gpus.{name}" for name in pipeline.gpus.__all__}


def test_the_batch_script_on_the_page_is_what_the_command_writes() -> None:
    words = ["--gres", "gpu:8", "--time", "24:00:00", "run", "experiment.name=compare", "profile=a100_80gb"]
    done = CliRunner().invoke(app, ["slurm", "write", "--out", "-", *words])
    assert done.exit_code == 0, done.output
    text = done.stdout.replace(interpreter(sys.executable, Path.cwd()), ".venv/bin/python")
    assert "\n".join(f"    {line}".rstrip() for line in text.splitlines()) in (DOCS / "slurm.md").read_text()


def test_every_fault_of_a_batch_script_is_on_the_page_of_the_doctor() -> None:
    found = set(re.findall(r'"Slurm: ([^"{]+)"', (ROOT / "pipeline" / "slurm" / "lint.py").read_text()))
    cells = re.findall(r"^\| ([^|]+) \|", (DOCS / "doctor.md").read_text(), re.MULTILINE)
    assert sorted(found - {name for cell in cells for name in cell.split(", ")}) == []


# -- the site ----------------------------------------------------------------------------------------------------


def site() -> dict[str, object]:
    found = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert isinstance(found, dict)
    return found


def leaves(node: object) -> list[str]:
    if isinstance(node, dict):
        return [leaf for inside in node.values() for leaf in leaves(inside)]
    return [leaf for inside in node for leaf in leaves(inside)] if isinstance(node, list) else [str(node)]


def test_every_page_is_in_the_site_once() -> None:
    assert sorted(leaves(site()["nav"])) == [page.relative_to(DOCS).as_posix() for page in PAGES]


def test_the_site_asks_no_other_server() -> None:
    theme = site()["theme"]
    assert isinstance(theme, dict)
    assert theme["font"] is False
    own = leaves({name: site().get(name, []) for name in ("extra_css", "extra_javascript")})
    assert [file for file in own if not (DOCS / file).is_file()] == []
    assert [file for file in own if "//" in (DOCS / file).read_text()] == []
    fetched = re.compile(r"!\[[^]]*\]\((?:https?:)?//|<(?:img|script|iframe|link)\b[^>]*(?:https?:)?//")
    assert [page.name for page in PAGES if fetched.search(page.read_text())] == []
    pictures = [*DOCS.glob("images/*.svg")]
    assert pictures
    assert [path.name for path in pictures if re.search(r"(?:href|url)[=(]\W*https?:", path.read_text())] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_lists_and_tables_stand_apart_from_what_is_before(page: Path) -> None:
    """GitHub finds a list or table right below a paragraph; what makes the site reads on in the paragraph."""
    lines, wrong = [re.sub(r"^    .*", "    code", line) for line in page.read_text().splitlines()], []
    for at, (before, line) in enumerate(pairwise(lines), start=2):
        is_text = before.strip() and not re.match(r"\s*(?:[-*|#>]|\d+\.|<!--|```|    )", before)
        in_item = before.startswith(" ") or re.match(r"\s*(?:[-*]|\d+\.) ", previous_start(lines, at - 2))
        if is_text and not in_item and re.match(r"(?:[-*] |\d+\. |\|)", line):
            wrong.append(f"{page.name}:{at}: {line}")
    assert not wrong, "\n".join(wrong)


def previous_start(lines: list[str], at: int) -> str:
    """The first line of the block that a line is in."""
    while at and lines[at - 1].strip():
        at -= 1
    return lines[at]


def test_links_of_pages_outside_of_the_site_lead_somewhere() -> None:
    outside = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md"]
    links = [(page, link) for page in outside for link in re.findall(r"\]\(([^)#\s]+)", page.read_text())]
    lost = [
        f"{page.name}: {link}" for page, link in links if ":" not in link and not (page.parent / link).exists()
    ]
    assert not lost


def test_the_script_for_slurm_passes_the_doctor(tmp_path: Path) -> None:
    page = (DOCS / "slurm.md").read_text()
    found = re.search(r"^    #!/bin/bash\n(?:    .*\n|\n(?=    ))+", page, re.MULTILINE)
    assert found
    script = tmp_path / "compare.sbatch"
    script.write_text(re.sub(r"^    ", "", found[0], flags=re.MULTILINE))
    said = [*check_script(script, None)]
    assert said
    assert [each for each in said if each.verdict is not Verdict.PASS] == []


# -- coming from TRL ---------------------------------------------------------------------------------------------

TRL_ARGUMENTS = {
    "`CPOConfig`": "experimental/cpo/cpo_config",
    "`DPOConfig`": "trainer/dpo_config",
    "`GRPOConfig`": "trainer/grpo_config",
    "`KTOConfig`": "trainer/kto_config",
    "`ORPOConfig`": "experimental/orpo/orpo_config",
    "`RLOOConfig`": "trainer/rloo_config",
    "`SFTConfig`": "trainer/sft_config",
}
"""Section of the page -> module of `trl`."""


@cache
def declared(package: str, module: str) -> frozenset[str]:
    """Fields of the configurations in a module, read without importing it, which takes seconds."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse((Path(spec.origin).parent / module).with_suffix(".py").read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    lines = [line for node in classes for line in node.body if isinstance(line, ast.AnnAssign)]
    return frozenset(line.target.id for line in lines if isinstance(line.target, ast.Name))


def rows_of(section: str) -> list[tuple[str, list[str], list[str]]]:
    """Kind of table, names in its first column, keys in its second, of each row of a section."""
    text = (DOCS / "coming-from-trl.md").read_text()
    of_section = re.split(r"^## ", text, flags=re.MULTILINE)
    lines = next(part for part in of_section if part.startswith(f"{section}\n")).splitlines()
    rows, kind = [], ""
    for before, line in zip(["", *lines], lines, strict=False):
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("|") and not before.startswith("|"):
            kind = cells[0].strip("`")
        elif line.startswith("| `"):
            rows.append((kind, re.findall(r"`(\w+)`", cells[0]), re.findall(r"`([\w.]+)`", cells[1])))
    return rows


def test_the_page_has_every_argument_of_trl() -> None:
    shared = {name for _, names, _ in rows_of("Of all") for name in names}
    for section, module in TRL_ARGUMENTS.items():
        named = {name for _, names, _ in rows_of(section) for name in names}
        fields = declared("trl", module)
        assert named <= fields, section
        above = {name for _, names, _ in rows_of("`GRPOConfig`") for name in names} if "RLOO" in section else set()
        assert fields - named - shared - above == set(), section
    assert declared("trl", "trainer/base_config") <= shared


def test_arguments_that_all_have_exist() -> None:
    of = {
        "TRL": declared("transformers", "training_args")
        | declared("trl", "trainer/base_config")
        | declared("trl", "trainer/dpo_config"),
        "LoraConfig": declared("peft", "tuners/lora/config"),
    }
    named = [(kind, name) for kind, names, _ in rows_of("Of all") if kind in of for name in names]
    assert {kind for kind, _ in named} == set(of)
    assert [name for kind, name in named if name not in of[kind]] == []


def test_who_asks_for_help_by_a_name_of_trl_is_led_to_the_key_on_the_page() -> None:
    sections = ["Of all", *TRL_ARGUMENTS]
    rows = [(names, keys) for section in sections for _, names, keys in rows_of(section) if keys]
    led = {name: "\n".join(text for text, _ in help_on(name)) for names, _ in rows for name in names}
    lost = [
        name for names, keys in rows for name in names if not any(key.split(".")[-1] in led[name] for key in keys)
    ]
    assert lost == []


@pytest.mark.parametrize("algo", OF_ALGORITHM)
def test_what_from_trl_goes_by_is_the_table_on_the_page(algo: str) -> None:
    """Whichever of the two is changed, so must be the other: `pipeline/learning/from_trl.py`."""
    table = {**SHARED, **OF_ALGORITHM[algo]}
    said: dict[str, set[str]] = {}
    of_drawing = ["`GRPOConfig`"] * (algo == "RLOO")
    for section in ("Of all", *of_drawing, f"`{CONFIGS[algo].partition(':')[2]}`"):
        for kind, names, keys in rows_of(section):
            if kind == "TRL":
                named = [name for name in names if not name.startswith(("vllm_", "stop_strings"))]
                here = {re.sub(r"^algos\.(DPO|GRPO)\.", f"algos.{algo}.", key) for key in keys}
                said |= dict.fromkeys(named, here)
    # What is given as `NAME=VALUE` on the page is left out.
    assert {name for name, keys in said.items() if keys} <= table.keys()
    held = {name: each for name, each in counterparts(algo).items() if said.get(name)}
    assert len(held) > 25
    wrong = {name: each.key for name, each in held.items() if each.key not in said[name]}
    assert wrong == {}


def test_keys_on_the_page_exist_here() -> None:
    sections = ["# Coming from TRL", "Of all", *TRL_ARGUMENTS]
    rows = [row for section in sections for row in rows_of(section)]
    assert {kind for kind, _, _ in rows} >= {"verl", "TRL"}
    keys = {key for _, _, found in rows for key in found}
    assert len(keys) > 30
    assert keys - set(known_keys()) == set()
