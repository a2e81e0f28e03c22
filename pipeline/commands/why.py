"""``why``: where a job stands, and why it ran again or would run with other settings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from pipeline.config.checks import check_config
from pipeline.config.load import load_config
from pipeline.config.schema import Config
from pipeline.engine.store.shared import check_address, look
from pipeline.engine.store.store import Store
from pipeline.errors import ConfigError
from pipeline.plan.build import build_plan
from pipeline.plan.chains import check_size
from pipeline.plan.compatibility import named_by_bits, plain_attention, resolve_widths
from pipeline.plan.models import check_models
from pipeline.runs.index import choose_run, find_job, runs_before
from pipeline.runs.loaded import LoadedRun, load_planned
from pipeline.runs.report.why import explain_job, explain_request
from pipeline.runs.sources import read_models, read_sources
from pipeline.runs.trained import run_of_job


def why(output_dir: Path, name: str, job: str, stamp: str | None, overrides: Sequence[str]) -> list[str]:
    """Explain a job: of a run, or of the request that these overrides would make.

    Args:
        output_dir: Folder of all runs.
        name: The experiment.
        job: Id of the job, or a part of it.
        stamp: The run to compare with; None for the one before (with overrides: the newest).
        overrides: ``key=value`` as on the command line of a run.

    Raises:
        PipelineError: There is no such run or job, or the request is wrong.
    """
    now = time.time()
    if overrides:
        config = _request(name, overrides)
        run = load_planned(choose_run(output_dir, name, stamp))
        plan = build_plan(
            config,
            sources=read_sources(config),
            models=read_models(config),
            plain_attention=plain_attention(config),
            widths=resolve_widths(config),
        )
        store = Store(Path(config.execution.store).absolute()) if config.execution.store else run.store
        url = config.execution.shared_store
        return explain_request(run, plan, find_job(plan.jobs, job), store, look(url)[0] if url else ())
    run = run_of_job(output_dir, name, job)
    job_id = find_job(run.plan.jobs, job)
    return explain_job(run, job_id, _earlier(output_dir, run, job_id, stamp), now)


def _request(name: str, overrides: Sequence[str]) -> Config:
    wrong = [override for override in overrides if "=" not in override and not override.startswith("~")]
    if wrong:
        raise ConfigError(f"cannot read '{wrong[0]}'. After the job come settings as for a run: KEY=VALUE.")
    config = load_config([f"experiment.name={name}", *overrides])
    check_config(config)
    if config.execution.shared_store is not None:
        check_address(config.execution.shared_store)
    check_size(config)
    check_models(config)
    return named_by_bits(config)


def _earlier(output_dir: Path, run: LoadedRun, job_id: str, stamp: str | None) -> LoadedRun | None:
    """The run to compare with: the one that was asked for, or the last before this one that has the job."""
    if stamp is not None:
        chosen = load_planned(choose_run(output_dir, run.name, stamp))
        if job_id not in chosen.plan.jobs:
            raise ConfigError(f"run {chosen.stamp} of {run.name} has no job {job_id}.")
        return chosen
    for folder in reversed(runs_before(run.folder)):
        if not folder.plan.is_file():
            continue
        earlier = load_planned(folder)
        if job_id in earlier.plan.jobs:
            return earlier
    return None
