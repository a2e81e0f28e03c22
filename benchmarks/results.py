"""Makes the tables of docs/results.md, and that of README.md, from runs of the main command.

    python -m benchmarks.results                       # all parts, in their order; hours
    python -m benchmarks.results first_run addition    # some of them
    python -m benchmarks.results --list                # parts, what each runs, and how long that takes
    python -m benchmarks.results --write addition      # run nothing: tables of what was run before

A part is one run, and its place on a page is between two comments, `<!-- results: NAME -->` and `<!-- end -->`;
what stands around them is written by hand. Parts share one folder of outputs, so they go on where they were
stopped, and what two of them have in common is computed once. `--write` takes runs of the parts' own commands that
ended well, and no others.
"""

from __future__ import annotations

import argparse
import io
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml
from rich.console import Console

from pipeline.config.load import load_config
from pipeline.config.plain import to_plain
from pipeline.config.tables import ALGORITHMS
from pipeline.errors import PipelineError, StoreError
from pipeline.plan.compatibility import usable_attention
from pipeline.runs.cost import FILE as COMPUTE
from pipeline.runs.cost import Compute, read_compute
from pipeline.runs.loaded import LoadedRun, choose_run
from pipeline.runs.record import PooledRow, ResultRow, Results, primary_metric, read_results
from pipeline.runs.report.format import decimal, interval
from pipeline.runs.report.tables import budget_tables, front_tables, result_tables
from pipeline.terminal.columns import FittedTable

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"
README = ROOT / "README.md"
METHODS = tuple(sorted(set(ALGORITHMS) - {"SFT", "RM", "BlockSearch", "Distilled"}))
"""All that learn from what they draw, by themselves, to answer better."""
BY_REWARD = tuple(name for name in METHODS if name != "BestOfN" and not name.endswith("-HF"))
"""Those among them that fit no reward model."""
MARKS = (1, 2, 4, 8)
"""Rounds of the part `curves` that are shown."""
_WIDE = 112
"""Columns of a terminal whose table fits a page."""
_BEGIN = "<!-- results: "
_HOW = ("device", "execution", "output_dir")
"""Parts of the configuration that say where and how fast work is done."""
_MOST_KEYS = 4
"""Keys that a message names."""
_NONE = object()
"""Of a configuration that lacks a key."""


@dataclass(frozen=True)
class Part:
    """One run and the table made of it.

    Attributes:
        name: Of the part, and of the run.
        request: The command line, without the name.
        tables: From results, and what they took to make, to what stands on the page.
        minutes: How long it takes on two cores of an AMD EPYC after the parts above it.
        page: Where it stands.
        with_costs: Whether the tables show what methods took to make.
    """

    name: str
    request: tuple[str, ...]
    tables: Callable[[Results, Compute], str]
    minutes: int
    page: Path = PAGE
    with_costs: bool = True

    @property
    def words(self) -> list[str]:
        """What a reader types after `python`."""
        return ["run_parallel.py", f"experiment.name={self.name}", *self.request]


# -- tables ----------------------------------------------------------------------------------------------------


def as_printed(results: Results, compute: Compute) -> str:
    """What a terminal of 80 columns shows."""
    return _printed(result_tables(results, compute.costs), 80)


def methods(results: Results, compute: Compute) -> str:
    """The table as it is printed."""
    return _printed(result_tables(results, compute.costs))


def with_spread(results: Results, compute: Compute) -> str:
    """The same, and how far policies lie apart."""
    return f"{methods(results, compute)}\n\n{_spread(results)}"


def fronts(results: Results, _compute: Compute) -> str:
    """Reward against divergence, as it is printed."""
    return _printed(front_tables(results))


def curves(results: Results, compute: Compute) -> str:
    """Methods after as many prompts, then at training budgets as these are printed."""
    return f"{_after_prompts(results)}\n\n{_printed(budget_tables(compute.budgets, results))}"


def _after_prompts(results: Results) -> str:
    """What every method has reached after some of its rounds, with the interval after the last of them."""
    metric = _judged_by(results.pooled)
    found = {(row.algo, row.round): row for row in results.pooled if row.metric == metric}
    lines = [["method", *(f"after round {number}" for number in MARKS), "95 % interval"]]
    for algo in sorted({algo for algo, number in found if number}):
        rows = [found[algo, number] for number in MARKS]
        values = [decimal(row.value or 0.0) for row in rows]
        lines.append([algo, *values, interval(rows[-1].ci_low, rows[-1].ci_high)])
    return _table(lines)


def _printed(tables: Iterable[FittedTable], width: int = _WIDE) -> str:
    """What a terminal of some columns shows, indented as code."""
    shown = io.StringIO()
    console = Console(file=shown, width=width, color_system=None)
    for table in tables:
        console.print(table)
    return "\n".join(f"    {line}".rstrip() for line in shown.getvalue().strip("\n").splitlines())


def _spread(results: Results) -> str:
    """The policies of every method after the last round: their mean, the worst one, and how far they lie apart."""
    values = {name: [row.value or 0.0 for row in rows] for name, rows in _last(results).items()}
    lines = [["method", "policies", f"mean {_judged_by(results.pooled)}", "worst", "standard deviation"]]
    for name, found in values.items():
        apart = decimal(stdev(found)) if len(found) > 1 else ""
        lines.append([name, str(len(found)), decimal(fmean(found)), decimal(min(found)), apart])
    return _table(lines)


def _last(results: Results) -> dict[str, list[ResultRow]]:
    """Method -> what its policies reach after the last round, the reference first."""
    metric, number = _judged_by(results.pooled), max(row.round for row in results.rows)
    found: dict[str, list[ResultRow]] = {}
    for row in sorted(results.rows, key=lambda row: (row.algo != "reference", row)):
        is_last = row.round == (0 if row.algo == "reference" else number)
        if row.metric == metric and is_last and row.value is not None:
            found.setdefault(row.algo, []).append(row)
    return found


def _judged_by(rows: Iterable[PooledRow]) -> str:
    ordered = sorted(rows, key=lambda row: (row.algo, row.round))
    cells = [[row.metric for row in cell] for _, cell in groupby(ordered, lambda row: (row.algo, row.round))]
    return primary_metric(cells) or "reward"


def _table(lines: Sequence[Sequence[str]]) -> str:
    head, *rows = lines
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _algos(names: Iterable[str]) -> str:
    return f"algos=[{','.join(names)}]"


# -- parts -----------------------------------------------------------------------------------------------------

_UNSEEN = "models.tiny.seeds=[3,4,5]"
"""References that no setting was chosen by; tuning.py uses those before them."""
PARTS = (
    Part("first_run", (), as_printed, 2, README),
    Part("addition", (_algos(METHODS), _UNSEEN), with_spread, 45),
    Part(
        "curves",
        # 640 prompts with four completions each: a round has 2,560.
        (
            _algos(BY_REWARD),
            _UNSEEN,
            f"rounds_of_training={MARKS[-1]}",
            "data_collection.prompts_per_round=640",
            "evaluation.budgets=[2.5e10,1e11,4e11]",
        ),
        curves,
        15,
    ),
    Part(
        "sorting",
        (
            "dataset=[]",
            "datasets.sorting.class_path=examples.sorting.Sorting",
            _algos(BY_REWARD),
            _UNSEEN,
        ),
        methods,
        20,
    ),
    Part(
        "noisy_preferences",
        ("algos=[PITA]", "algos.PITA.preference=bradley_terry", _UNSEEN),
        methods,
        2,
    ),
    Part(
        "fronts",
        (
            "algos=[PITA,QSharp,CD,DPO,RAFT]",
            _UNSEEN,
            "evaluation.etas=[0.03,0.3,1,3]",
            "algos.DPO.front={beta: [0.1,0.3,1,3]}",
            "algos.RAFT.front={learning_rate: [5e-5,2e-4,1e-3]}",
        ),
        fronts,
        20,
        with_costs=False,
    ),
    Part(
        "sentiment",
        # Half of what there is to train on: all of it takes some 45 min, and three seeds of it over two hours.
        ("experiment=sentiment", "data_collection.prompts_per_round=256", "evaluation.num_prompts=100"),
        methods,
        30,
    ),
)


# -- the command -----------------------------------------------------------------------------------------------


def overrides_of(part: Part, out: Path) -> list[str]:
    """The command line of a part, with where its outputs go."""
    return [*part.words[1:], f"output_dir={out}", "device=cpu"]


def carry_out(part: Part, out: Path) -> None:
    """Run a part, or what is left of it.

    Raises:
        SystemExit: The run did not end well.
    """
    begun = time.monotonic()
    done = subprocess.run([sys.executable, part.words[0], *overrides_of(part, out)], cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{part.name}: the run ended with exit code {done.returncode}; the page is as it was")
    print(f"{part.name}: {(time.monotonic() - begun) / 60:.0f} min", file=sys.stderr)


def written(page: str, name: str, text: str) -> str:
    """A page with other text at the place of a part.

    Raises:
        SystemExit: The page has no such place, or its end is not marked.
    """
    begin, end = f"<!-- results: {name} -->\n", "<!-- end -->"
    before, _, after = page.partition(begin)
    old, found, rest = after.partition(end)
    if not found or _BEGIN in old:
        raise SystemExit(f"there is no place for {name}: {begin.strip()} ... {end}, and no other begin between")
    return f"{before}{begin}\n{text}\n\n{end}{rest}"


def block(part: Part, out: Path) -> str:
    """What stands at the place of a part: its command, unless the page has it already, and its tables.

    Args:
        part: The part.
        out: Folder of the runs.

    Raises:
        SystemExit: There is no run of it that ended well and whose numbers can be read.
    """
    try:
        folder = choose_run(out, part.name)
        _check_run(part, out, LoadedRun(folder))
        results, compute = read_results(folder.results_json), read_compute(folder.path)
        if part.with_costs and not compute.costs:
            raise StoreError(f"{folder.path / COMPUTE} has no costs. The command of the run writes it again.")
    except (PipelineError, OSError) as error:
        raise SystemExit(f"{part.name}: {error} The page is as it was.") from error
    tables = part.tables(results, compute)
    return tables if part.page == README else f"    {shlex.join(['python', *part.words])}\n\n{tables}"


def _check_run(part: Part, out: Path, run: LoadedRun) -> None:
    """Refuse a run that is not one of the part's own command, or did not end well."""
    if (state := run.state) != "done":
        raise StoreError(f"the run in {run.folder.path} is not done but {state}.")
    config, _ = usable_attention(load_config(overrides_of(part, out)), gpu=False)
    asked = yaml.safe_load(yaml.safe_dump(to_plain(config)))
    if other := sorted(_differing(_enabled(asked), _enabled(run.config))):
        raise StoreError(
            f"the run in {run.folder.path} is not of this part's command: its config.yaml differs in "
            f"{', '.join(other[:_MOST_KEYS])}{' and more' if len(other) > _MOST_KEYS else ''}."
        )


def _enabled(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without algorithms that take no part: their defaults may be others since."""
    algos = {name: algo for name, algo in config.get("algos", {}).items() if algo.get("enabled")}
    return {**config, "algos": algos}


def _differing(asked: Mapping[str, Any], found: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Keys of two configurations that differ, but for those that say where and how fast work is done."""
    for key in asked.keys() | found.keys():
        one, other = asked.get(key, _NONE), found.get(key, _NONE)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _differing(one, other, f"{above}{key}.")
        elif one != other and (above or key).split(".")[0] not in _HOW:
            yield f"{above}{key}"


def main() -> None:
    args = _arguments()
    parts = [part for part in PARTS if part.name in args.parts]
    if args.list:
        for part in parts:
            print(f"{part.name:18} {part.minutes:4} min   {shlex.join(['python', *part.words])}")
        return
    for part in parts:  # before hours are spent on what has no place
        written(part.page.read_text("utf-8"), part.name, "")
    if args.write:
        for part, text in [(part, block(part, args.out)) for part in parts]:
            _write(part, text)
        return
    for part in parts:
        carry_out(part, args.out)
        _write(part, block(part, args.out))


def _write(part: Part, text: str) -> None:
    part.page.write_text(written(part.page.read_text("utf-8"), part.name, text), "utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=100)
    )
    names = [part.name for part in PARTS]
    parser.add_argument("parts", nargs="*", default=names, metavar="PART", help=f"of {', '.join(names)}; all")
    parser.add_argument("--out", type=Path, default=Path("outputs/results"), help="folder of the runs")
    parser.add_argument("--list", action="store_true", help="run nothing, show the parts")
    parser.add_argument("--write", action="store_true", help="run nothing, write tables of what was run before")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(names):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    args.out = args.out.absolute()  # runs are started in another folder
    return args


if __name__ == "__main__":
    main()
