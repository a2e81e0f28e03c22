"""``why``: where a job stands, and why it ran again or would run with other settings."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.typed import OUTPUTS, Experiment, OutputDir, examples
from pipeline.config.checks import check_config
from pipeline.config.load import load_config
from pipeline.engine.store.shared import check_address, look
from pipeline.engine.store.store import Store
from pipeline.errors import ConfigError
from pipeline.plan.build import build_plan, check_size
from pipeline.plan.compatibility import named_by_bits, plain_attention
from pipeline.plan.models import check_models
from pipeline.runs.index import choose_run, find_job, runs_before
from pipeline.runs.loaded import LoadedRun, load_planned
from pipeline.runs.report.why import explain_job, explain_request
from pipeline.runs.sources import read_models, read_sources
from pipeline.runs.trained import run_of_job
from pipeline.terminal.console import make_console, say

app = typer.Typer()


@app.command(
    epilog=examples(
        "pipeline why first_run PITA/r2/metrics",
        "pipeline why first_run PITA/r2/metrics algos.PITA.eta=0.5",
    ),
)
def why(
    name: Experiment,
    job: Annotated[
        str, typer.Argument(help="Id of a job, a part of it that no other has, or a pattern with '*'.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Settings of a run that is not started yet: KEY=VALUE ...")
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Timestamp of the run to compare with; the one before if left out.")
    ] = None,
    output_dir: OutputDir = OUTPUTS,
) -> None:
    """Explain a job: of a run, or of the request that settings would make."""
    if overrides:
        lines = _of_request(output_dir, name, job, against, overrides)
    else:
        run = run_of_job(output_dir, name, job)
        job_id = find_job(run.plan.jobs, job)
        lines = explain_job(run, job_id, _earlier(output_dir, run, job_id, against), time.time())
    for line in lines:
        say(make_console(), line)


def _of_request(output_dir: Path, name: str, job: str, stamp: str | None, overrides: list[str]) -> list[str]:
    if wrong := [each for each in overrides if "=" not in each and not each.startswith("~")]:
        raise ConfigError(f"cannot read '{wrong[0]}'. After the job come settings as for a run: KEY=VALUE.")
    config = load_config([f"experiment.name={name}", *overrides])
    check_config(config)
    url = config.execution.shared_store
    if url is not None:
        check_address(url)
    check_size(config)
    check_models(config)
    config = named_by_bits(config)
    run = load_planned(choose_run(output_dir, name, stamp))
    plan = build_plan(
        config,
        sources=read_sources(config),
        models=read_models(config),
        plain_attention=plain_attention(config),
    )
    store = Store(Path(config.execution.store).absolute()) if config.execution.store else run.store
    return explain_request(run, plan, find_job(plan.jobs, job), store, look(url)[0] if url else ())


def _earlier(output_dir: Path, run: LoadedRun, job_id: str, stamp: str | None) -> LoadedRun | None:
    """The run to compare with: the one that was asked for, or the last before this one that has the job."""
    if stamp is not None:
        chosen = load_planned(choose_run(output_dir, run.name, stamp))
        if job_id not in chosen.plan.jobs:
            raise ConfigError(f"run {chosen.stamp} of {run.name} has no job {job_id}.")
        return chosen
    earlier = (load_planned(folder) for folder in reversed(runs_before(run.folder)) if folder.plan.is_file())
    return next((one for one in earlier if job_id in one.plan.jobs), None)
