"""The pages of docs/ are as the code is, in the site, and readable by those who make the site of them."""

import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import pipeline
from docs.made import on_page_markdown
from pipeline.__main__ import app
from pipeline.config.meaning import help_on, known_keys, shipped_meanings
from pipeline.learning.from_trl import OF_ALGORITHM, counterparts
from pipeline.slurm.script import interpreter

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
    rooms = {"gpus": pipeline.gpus, "sweeps": pipeline.sweeps, "toolbox": pipeline.toolbox}
    own = set(pipeline.__all__) - rooms.keys()
    assert named == own | {f"{room}.{name}" for room, module in rooms.items() for name in module.__all__}


def test_the_batch_script_on_the_page_is_what_the_command_writes() -> None:
    words = ["--gres", "gpu:8", "--time", "24:00:00", "run", "experiment.name=compare", "profile=a100_80gb"]
    done = CliRunner().invoke(app, ["slurm", "write", "--out", "-", *words])
    assert done.exit_code == 0, done.output
    text = done.stdout.replace(interpreter(sys.executable, Path.cwd()), ".venv/bin/python")
    assert "\n".join(f"    {line}".rstrip() for line in text.splitlines()) in (DOCS / "slurm.md").read_text()


def test_every_fault_of_a_batch_script_is_on_the_page_of_the_doctor() -> None:
    found = set(re.findall(r'"Slurm: ([^"{]+)"', (ROOT / "pipeline" / "slurm" / "lint.py").read_text()))
    cells = re.findall(r"^\| ([^|]+) \|", (DOCS / "doctor.md").read_text(), re.MULTILINE)
    assert found
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
def test_lists_and_tables_stand_apart(page: Path) -> None:
    """GitHub finds a list or table right below a paragraph; what makes the site reads on in the paragraph.

    Both read on in a table.
    """
    lines, wrong = [re.sub(r"^    .*", "    code", line) for line in page.read_text().splitlines()], []
    for at, (before, line) in enumerate(pairwise(lines), start=2):
        is_text = before.strip() and not re.match(r"\s*(?:[-*|#>]|\d+\.|<!--|```|    )", before)
        in_item = before.startswith(" ") or re.match(r"\s*(?:[-*]|\d+\.) ", previous_start(lines, at - 2))
        runs_on = before.startswith("|") and line.strip() and not line.startswith("|")
        if runs_on or (is_text and not in_item and re.match(r"(?:[-*] |\d+\. |\|)", line)):
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


# -- coming from TRL ---------------------------------------------------------------------------------------------


def rows_of_trl() -> list[tuple[list[str], list[str]]]:
    """Arguments of TRL, and keys that they are here, of each row of the page's table."""
    lines = (DOCS / "coming-from-trl.md").read_text().splitlines()
    cells = [line.strip("|").split(" | ") for line in lines if line.startswith("| `")]
    return [(re.findall(r"`(\w+)`", cell[0]), re.findall(r"`([\w.]+)`", cell[1])) for cell in cells]


def test_who_asks_for_help_by_a_name_of_trl_is_led_to_the_key_on_the_page() -> None:
    for names, keys in rows_of_trl():
        for name in names:
            led = "\n".join(text for text, _ in help_on(name))
            assert name in {key.split(".")[-1] for key in keys} or any(
                key.split(".")[-1] in led for key in keys
            ), name


def test_the_page_has_arguments_that_from_trl_knows_and_keys_that_exist() -> None:
    told = {name for algo in OF_ALGORITHM for name in counterparts(algo)}
    assert len(rows_of_trl()) > 20
    assert {name for names, _ in rows_of_trl() for name in names} - told == set()
    known = set(known_keys())
    assert {key for _, keys in rows_of_trl() for key in keys} - known == set()
    held = {each.key for algo in OF_ALGORITHM for each in counterparts(algo).values()}
    assert held - known == {"algos.SFT.batch_size"} - known
