"""Makes the tables of docs/results.md, and that of README.md, from runs of the main command.

    python -m benchmarks.results                       # all parts, in their order; hours
    python -m benchmarks.results first_run addition    # some of them
    python -m benchmarks.results --list                # parts, what each runs, and how long that takes
    python -m benchmarks.results --write addition      # run nothing: tables of what was run before

A part is one run, and its place on a page is between two comments, `<!-- results: NAME -->` and `<!-- end -->`;
what stands around them is written by hand. Parts share one folder of outputs, so they go on where they were
stopped, and what two of them have in common is computed once.
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev

from rich.console import Console

from pipeline.config.schema import ALGO_SCHEMAS
from pipeline.report.tables import result_tables
from pipeline.results.compute import EVALUATION, ComputeRow, read_compute
from pipeline.results.primary import primary_metric
from pipeline.results.record import Comparison, PooledRow, ResultRow, Results, read_results

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"
README = ROOT / "README.md"
MAIN = ("PITA", "QSharp", "CD", "DPO", "SFT")
"""Methods that are run with all seeds. The others take several times as long and get three."""
_MORE = ["95 % interval", "worst", "sd", "vs reference", "its interval", "p", "KL/seq", "Mtokens"]
"""Columns of the table of methods after the one of what they are judged by."""


@dataclass(frozen=True)
class Part:
    """One run and the table made of it.

    Attributes:
        name: Of the part, and of the run.
        request: The command line, without the name.
        tables: From results, and what they took to make, to what stands on the page.
        minutes: How long it takes on two cores of an AMD EPYC after the parts above it.
        page: Where it stands.
    """

    name: str
    request: tuple[str, ...]
    tables: Callable[[Results, Sequence[ComputeRow]], str]
    minutes: int
    page: Path = PAGE

    @property
    def words(self) -> list[str]:
        """What a reader types after `python`."""
        return ["run_parallel.py", f"experiment.name={self.name}", *self.request]


# -- tables ----------------------------------------------------------------------------------------------------


def as_printed(results: Results, compute: Sequence[ComputeRow]) -> str:
    """What a terminal of 80 columns shows, indented as code."""
    shown = io.StringIO()
    console = Console(file=shown, width=80, color_system=None)
    for table in result_tables(results, compute):
        console.print(table)
    return "\n".join(f"    {line}".rstrip() for line in shown.getvalue().strip("\n").splitlines())


def methods(results: Results, compute: Sequence[ComputeRow]) -> str:
    """Methods round by round, then pairs of them after the last round, then every reference alone."""
    parts = [_by_method(results, compute), _pairs(results.comparisons), _by_reference(results)]
    return "\n\n".join(part for part in parts if part)


def _by_reference(results: Results) -> str:
    """The mean and the worst policy of every reference after the last round."""
    primary = _judged_by(results.pooled)
    last = max(row.round for row in results.rows)
    rows = [row for row in results.rows if row.metric == primary and row.round in (0, last)]
    if len({row.reference for row in rows}) < 2:
        return ""
    names = sorted({row.algo for row in rows}, key=lambda algo: (algo != "reference", algo))
    lines = [["reference seed", *(name if name == "reference" else f"{name}: mean, worst" for name in names)]]
    for reference in sorted({row.reference or 0 for row in rows}):
        own = [row for row in rows if row.reference == reference]
        cells = [_mean_and_worst(row for row in own if row.algo == name) for name in names]
        lines.append([str(reference), *cells])
    return _table(lines)


def _mean_and_worst(rows: Iterable[ResultRow]) -> str:
    values = [row.value for row in rows if row.value is not None]
    return ", ".join(f"{value:.3f}" for value in ([fmean(values), min(values)] if len(values) > 1 else values))


def _by_method(results: Results, compute: Sequence[ComputeRow]) -> str:
    primary = _judged_by(results.pooled)
    measured = {(row.algo, row.round, row.metric): row for row in results.pooled}
    places = sorted({(row.algo, row.round) for row in results.pooled}, key=lambda at: (at[0] != "reference", at))
    tested = {(one.first, one.round): one.p for one in results.comparisons if one.second == "reference"}
    lines = [["method", "round", primary, *_MORE]]
    for algo, number in places:
        row = measured[algo, number, primary]
        singles = [
            one.value
            for one in results.rows
            if (one.algo, one.round, one.metric) == (algo, number, primary) and one.value is not None
        ]
        kl = measured.get((algo, number, "kl_per_sequence"))
        lines.append(
            [
                algo,
                str(number),
                _number(row.value),
                _interval(row.ci_low, row.ci_high),
                _number(min(singles)),
                _number(stdev(singles) if len(singles) > 1 else None),
                _number(row.difference, "+"),
                _interval(row.difference_low, row.difference_high, "+"),
                _p_value(tested.get((algo, number))),
                _number(kl.value if kl else None),
                _tokens(compute, algo, number),
            ]
        )
    return _table(lines)


def _pairs(comparisons: Iterable[Comparison]) -> str:
    pairs = sorted((one for one in comparisons if one.second != "reference"), key=lambda one: -abs(one.difference))
    if not pairs:
        return ""
    rows = [
        [
            f"{one.first} - {one.second}",
            _number(one.difference, "+"),
            _interval(one.ci_low, one.ci_high, "+"),
            _p_value(one.p),
        ]
        for one in pairs
    ]
    return _table([["pair", "difference", "95 % interval", "p"], *rows])


def _judged_by(rows: Iterable[PooledRow]) -> str:
    ordered = sorted(rows, key=lambda row: (row.algo, row.round))
    cells = [[row.metric for row in cell] for _, cell in groupby(ordered, lambda row: (row.algo, row.round))]
    return primary_metric(cells) or "reward"


def _tokens(compute: Iterable[ComputeRow], algo: str, number: int) -> str:
    """Generated and trained on up to a round, in millions, the mean over chains."""
    spent = [row for row in compute if row.algo == algo and row.round <= number and row.stage not in EVALUATION]
    chains = len({(row.reference, row.seed) for row in spent})
    return f"{sum(row.tokens for row in spent) / chains / 1e6:.2f}" if spent else ""


def _number(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.3f}"


def _interval(low: float | None, high: float | None, sign: str = "") -> str:
    return "" if low is None or high is None else f"{low:{sign}.3f} to {high:{sign}.3f}"


def _p_value(p: float | None) -> str:
    return "" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def _table(lines: Sequence[Sequence[str]]) -> str:
    head, *rows = lines
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


# -- parts -----------------------------------------------------------------------------------------------------

_THREE = "models.tiny.seeds=[0,1,2]"
PARTS = (
    Part("first_run", (), as_printed, 2, README),
    Part(
        "addition",
        (f"algos=[{','.join(MAIN)}]", "experiment.seeds=[0,1,2,3,4]", _THREE),
        methods,
        45,
    ),
    Part(
        "all_methods",
        (f"algos=[{','.join(sorted(ALGO_SCHEMAS))}]", "experiment.seeds=[0,1,2]", _THREE),
        methods,
        45,
    ),
    Part(
        "other_references",
        (f"algos=[{','.join(MAIN)}]", "models.tiny.seeds=[3,4,5,6,7,8,9]"),
        methods,
        25,
    ),
)


# -- the command -----------------------------------------------------------------------------------------------


def carry_out(part: Part, out: Path) -> None:
    """Run a part, or what is left of it.

    Raises:
        subprocess.CalledProcessError: The run did not end well.
    """
    begun = time.monotonic()
    subprocess.run([sys.executable, *part.words, f"output_dir={out}", "device=cpu"], cwd=ROOT, check=True)
    print(f"{part.name}: {(time.monotonic() - begun) / 60:.0f} min", file=sys.stderr)


def written(page: str, name: str, text: str) -> str:
    """A page with other text at the place of a part.

    Raises:
        SystemExit: The page has no such place.
    """
    place = re.compile(rf"(<!-- results: {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not place.search(page):
        raise SystemExit(f"there is no place for {name}: <!-- results: {name} --> ... <!-- end -->")
    return place.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page)


def block(part: Part, folder: Path) -> str:
    """What stands at the place of a part: its command, unless the page has it already, and its tables."""
    tables = part.tables(read_results(folder / "results.json"), read_compute(folder))
    return tables if part.page == README else f"    {shlex.join(['python', *part.words])}\n\n{tables}"


def main() -> None:
    args = _arguments()
    for part in PARTS:
        if part.name not in args.parts:
            continue
        if args.list:
            print(f"{part.name:18} {part.minutes:4} min   {shlex.join(['python', *part.words])}")
            continue
        if not args.write:
            carry_out(part, args.out)
        text = block(part, args.out / part.name / "latest")
        part.page.write_text(written(part.page.read_text("utf-8"), part.name, text), "utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=100)
    )
    names = [part.name for part in PARTS]
    parser.add_argument("parts", nargs="*", default=names, metavar="PART", help=f"of {', '.join(names)}; all")
    parser.add_argument("--out", type=Path, default=Path("outputs/results").absolute(), help="folder of the runs")
    parser.add_argument("--list", action="store_true", help="run nothing, show the parts")
    parser.add_argument("--write", action="store_true", help="run nothing, write tables of what was run before")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(names):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    return args


if __name__ == "__main__":
    main()
