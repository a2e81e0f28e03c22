"""What status and why say of trained models that are there no more: what removed them, and which are lost."""

import io
from pathlib import Path

import pytest

from pipeline.config.schema import Keep
from pipeline.engine.keeper import remove_weights
from pipeline.engine.store.store import Store
from pipeline.plan.recorded import plan_text
from pipeline.runs.loaded import LoadedRun
from pipeline.runs.report.status import print_run
from pipeline.runs.report.why import explain_job
from pipeline.terminal.console import Terminal
from tests.doubles.engine import job, plan_of
from tests.doubles.runs import START, WrittenRun

PLAN = plan_of(
    *(
        job(f"r{number}", algo="A", round=number, stage="train", weights=("model.safetensors",))
        for number in (1, 2, 3)
    )
)


def trained(tmp_path: Path, keep: Keep) -> tuple[WrittenRun, Store]:
    """A run that has trained three rounds, of which the weights of the first went by ``execution.keep=last``."""
    run, store = WrittenRun(tmp_path, PLAN), Store(tmp_path / ".store")
    run.folder.plan.write_text(plan_text(PLAN, keep=keep))
    scratch = store.scratch("maker")
    for each in PLAN.jobs.values():
        folder = store.begin(scratch, each.key, 1)
        (folder / "model.safetensors").write_text("weights")
        store.commit(each.key, folder, {"job": each.id})
        run.begin(each.id)
        run.finish(each.id)
    run.end()
    first = PLAN.jobs["r1"]
    assert remove_weights(store, first.key, first.weights, "execution.keep=last", scratch, lambda: True)
    return run, store


@pytest.mark.parametrize(
    ("keep", "by"), [(Keep.last, "execution.keep=last"), (Keep.all, "execution.keep=last of another run")]
)
def test_what_removed_weights_is_said_and_not_what_this_run_was_to_keep(
    tmp_path: Path, keep: Keep, by: str
) -> None:
    run, _ = trained(tmp_path, keep)
    text = shown(run)
    assert f"made, and their weights removed ({by})\n" in text
    assert "in the store no more" not in text
    why = "\n".join(explain_job(LoadedRun(run.folder), "r1", None, START))
    assert "its weights were removed, as execution.keep=last asked" in why


def shown(run: WrittenRun) -> str:
    out = io.StringIO()
    print_run(LoadedRun(run.folder), START, Terminal(file=out, width=200))
    return out.getvalue()
