"""Makes the parts of the documentation that follow from the code: keys, names of the package, messages.

    python -m tests.pages            # say which pages are not as the code is; exit code 1 if any
    python -m tests.pages --write    # bring them up to date

Such a part stands between ``<!-- made: WHAT ... -->`` and ``<!-- end -->``; everything else is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path

from typer.testing import CliRunner

import pipeline
from pipeline.__main__ import app
from pipeline.config.meaning import Meaning, shipped_meanings, shipped_sections
from pipeline.config.tables import TABLES
from pipeline.slurm.script import interpreter
from tests.messages import all_messages

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PART = re.compile(r"(<!-- made: (\w+)(?: ([^>]*?))? -->\n).*?(<!-- end -->)", re.DOTALL)


def made_pages() -> list[Path]:
    """Pages with parts that are made."""
    return [page for page in sorted(DOCS.rglob("*.md")) if PART.search(page.read_text())]


def up_to_date(page: str) -> str:
    """The text of a page with its parts made anew."""
    return PART.sub(lambda found: f"{found[1]}\n{MAKERS[found[2]](_words(found[3]))}\n\n{found[4]}", page)


def _words(text: str | None) -> list[str]:
    return (text or "").split()


@cache
def named_in(what: str) -> list[str]:
    """What parts of a kind are about, over all pages."""
    parts = [found for page in made_pages() for found in PART.finditer(page.read_text())]
    return [word for found in parts if found[2] == what for word in _words(found[3])]


# -- keys --------------------------------------------------------------------------------------------------------


def _keys(what: Sequence[str]) -> str:
    """Tables of the keys of the run, of all sections, or of a table of algorithms, datasets or models."""
    sections = [key for key in shipped_sections() if "." not in key]
    asked = [each for word in what for each in (sections if word == "sections" else [word])]
    return "\n\n".join(table for section in asked for table in _key_tables(section))


def _key_tables(section: str) -> Iterator[str]:
    found, about = shipped_meanings(), shipped_sections()
    if section == "run":
        yield _key_table([each for key, each in found.items() if "." not in key], "")
    elif section not in TABLES:
        prefix = f"{section}."
        yield f"### `{section}`\n\n{about[section]}\n\n" + _key_table(
            [each for key, each in found.items() if key.startswith(prefix)], prefix
        )
    else:
        yield from _table_of_tables(section)


def _table_of_tables(table: str) -> Iterator[str]:
    """What all entries of a table have once, then what is each entry's own."""
    found, about = shipped_meanings(), shipped_sections()
    names = [key.split(".")[1] for key in about if key.startswith(f"{table}.") and key.count(".") == 1]
    of = {
        name: {
            key.removeprefix(f"{table}.{name}."): each
            for key, each in found.items()
            if key.startswith(f"{table}.{name}.")
        }
        for name in names
    }
    shared = [
        key
        for key in of[names[0]]
        if len({_row(of[name][key], key) if key in of[name] else "" for name in names}) == 1
    ]
    yield f"### `{table}.NAME`\n\nWhat all of them have, with the same default.\n\n" + _rows(
        [_row(of[names[0]][key], key) for key in shared]
    )
    for name in names:
        rows = [_row(each, key) for key, each in of[name].items() if key not in shared]
        said = about[f"{table}.{name}"]
        yield f"### `{table}.{name}`\n\n{said}\n\n" + (_rows(rows) if rows else "Nothing besides.")


def _key_table(found: Sequence[Meaning], prefix: str) -> str:
    return _rows([_row(each, each.key.removeprefix(prefix)) for each in found])


def _rows(rows: Sequence[str]) -> str:
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])


def _row(each: Meaning, name: str) -> str:
    choices = "; ".join(f"`{choice}`" + (f": {said}" if said else "") for choice, said in each.choices.items())
    allowed = each.allowed.partition(", or null")[0]
    kind = each.type if not allowed else f"{each.type}, {allowed}"
    said = " ".join(part for part in (_ended(each.text), _ended(choices or kind)) if part)
    default = f"`{each.default}`" if each.default else "none: must be given"
    return f"| `{name}` | {_cell(default)} | {_cell(said)} |"


def _ended(text: str) -> str:
    text = text.strip()
    text = text[:1].upper() + text[1:] if not text.startswith("`") else text
    return text if not text or text.endswith((".", ";", ":")) else f"{text}."


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# -- names of the package ----------------------------------------------------------------------------------------


def _names(places: Sequence[str]) -> str:
    """What users import of modules, for mkdocstrings."""
    return "\n\n".join(f"::: pipeline.{name}" for place in places for name in names_of(place))


def names_of(place: str) -> list[str]:
    """Names that the package offers of a module, or of modules inside it that have no place of their own."""
    return [name for home, names in pipeline._HOMES.items() if home_place(home) == place for name in names.split()]


def home_place(home: str) -> str:
    """Where on the pages the names of a module are; "" for nowhere."""
    parts = home.split(".")
    near = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((each for each in near if each in named_in("names")), "")


# -- messages ----------------------------------------------------------------------------------------------------


def _messages(places: Sequence[str]) -> str:
    """The messages of modules and folders, one an item, with `…` for what differs."""
    of_places = [of for place in places for module, of in all_messages().items() if place_of(module) == place]
    return "\n".join(f"- {_code(_begun(said))}" for said in dict.fromkeys(chain(*of_places)))


def _begun(text: str) -> str:
    """A message that begins with a key of the user's, as one reads it on the screen."""
    return re.sub(r"^(?:…\.)+(?=[a-z…])", "SECTION.", re.sub(r"^(?:…\.)*…=(?:…|\.\.\.)", "KEY=VALUE", text))


def place_of(module: str) -> str:
    """The name of a module, or its nearest folder's, under which the pages have its messages; "" for none."""
    near = (each.as_posix() for each in (Path(module), *Path(module).parents))
    return next((each for each in near if each in named_in("messages")), "")


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


# -- Slurm -------------------------------------------------------------------------------------------------------


def _slurm(words: Sequence[str]) -> str:
    """What a command prints that writes a batch script, in an environment as the README makes it."""
    done = CliRunner().invoke(app, ["slurm", "write", "--out", "-", *words])
    assert done.exit_code == 0, done.output
    text = done.stdout.replace(interpreter(sys.executable, Path.cwd()), ".venv/bin/python")
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


MAKERS: dict[str, Callable[[Sequence[str]], str]] = {
    "keys": _keys,
    "names": _names,
    "messages": _messages,
    "slurm": _slurm,
}


def main(arguments: Sequence[str]) -> int:
    """Compare, or write."""
    stale = {page: new for page in made_pages() if (new := up_to_date(page.read_text())) != page.read_text()}
    for page, text in stale.items():
        print(page.relative_to(ROOT))
        if "--write" in arguments:
            page.write_text(text)
    return 1 if stale and "--write" not in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
