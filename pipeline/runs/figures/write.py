"""Which figures a run has, drawn and written: the same bytes from the same run, with no date in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.place import install_command
from pipeline.errors import ConfigError
from pipeline.files import replacing
from pipeline.runs.figures import Format, charts
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.looks import bars, drawn_methods, in_order_of_work
from pipeline.runs.report.tables import HEADINGS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = tuple(each.value for each in Format)
_METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "ModDate": None, "Producer": None, "Creator": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}
"""Nothing of when and with what: equal data makes equal files."""
_MOST_BARS = 200
"""Of a timeline: of more, neighbours of one stage are one bar."""
_Named = Iterator[tuple[str, Callable[[], "Figure"]]]


def write_figures(run: LoadedRun, out: Path, formats: Sequence[str]) -> list[Path]:
    """Write every figure that a run has data for.

    Args:
        run: The run.
        out: Folder to write to; made where it is missing.
        formats: Of `FORMATS`.

    Returns:
        The files.

    Raises:
        ConfigError: matplotlib is not installed, or the folder cannot be written to.
        PipelineError: The run's results cannot be read.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError(
            f"figures are drawn by matplotlib, which is not installed. Add it: {install_command('figures')}"
        )
    written = []
    with charts.styled():
        for name, draw in _figures(run):
            figure = draw()
            for kind in formats:
                written.append(out / f"{name}.{kind}")
                _write(figure, written[-1], kind)
    return written


def _figures(run: LoadedRun) -> _Named:
    results, compute, curves = run.results, run.compute, run.curves()
    methods = drawn_methods(results)
    stages = in_order_of_work(job.stage for job in run.jobs.values())
    for place in charts.places(results):
        metric = charts.metric_of(results, place) or ""
        heading, where = HEADINGS.get(metric, metric), "_".join(place)
        if series := charts.reward_against_kl(results, place):
            yield _file("front", where), partial(charts.front, series, heading, methods)
        if _goes_over_rounds(series := charts.over_rounds(results, place)):
            yield _file("rounds", where), partial(charts.rounds, series, heading, methods)
        if series := charts.against_flops(results, compute.costs, place):
            yield _file("flops", where), partial(charts.flops, series, heading, methods)
        if panels := charts.trainings(curves, place):
            yield _file("training", where), partial(charts.training, panels)
        if seconds := charts.seconds_by_stage(compute.rows, place):
            yield _file("cost", where), partial(charts.cost, seconds, stages)
    if spans := run.timeline():
        drawn = bars(spans, min(span.start for span in spans), run.view.last, _MOST_BARS, across=False)
        yield "timeline", partial(charts.timeline, drawn, stages)


def without_rounds(run: LoadedRun) -> list[str]:
    """Datasets and models with results that no figure shows over rounds, since they are of one round."""
    found = ((place, charts.over_rounds(run.results, place)) for place in charts.places(run.results))
    return ["/".join(place) for place, series in found if series and not _goes_over_rounds(series)]


def _goes_over_rounds(series: Sequence[charts.Series]) -> bool:
    return any(len(one.points) > 1 for one in series)


def _file(kind: str, where: str) -> str:
    """A name that every file system takes, whatever a dataset is called."""
    return f"{kind}_" + (re.sub(r"[^\w.-]+", "-", where, flags=re.ASCII).strip("-.")[:100] or "run")


def _write(figure: Figure, path: Path, kind: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, durable=False) as temporary:
            figure.savefig(temporary, format=kind, metadata=_METADATA[kind])
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
