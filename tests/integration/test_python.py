"""Programs and notebooks of a user's own that run and load experiments, with real workers."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.doubles.small_runs import ROOT, SMALL, calm_run, events, wait_for, with_reference

SCRIPT = """
import os, signal, sys
print("begun")
from omegaconf import OmegaConf
import pipeline
OmegaConf.register_new_resolver("twice", lambda number: 2 * number)
numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
before = dict(os.environ), list(map(signal.getsignal, numbers)), sys.stdout
settings = sys.argv[1:]
try:
    pipeline.run(settings)
except KeyboardInterrupt:
    print("interrupted", pipeline.load_run("t").state)
os.rmdir(os.environ["GATE"])
run = pipeline.run(settings)
assert before == (dict(os.environ), list(map(signal.getsignal, numbers)), sys.stdout)
found = run.results[(run.results.algo == "Counted") & (run.results["round"] == 2)]
print("ended", run.state, run.exit_code, dict(zip(found.metric, found.value)))
assert "torch" not in sys.modules
"""
"""Without a main guard: a worker that ran it again would say so, and start workers of its own.

Nor do workers need the resolvers that it registered, or anybody torch, where stages do not.
"""


TWICE = "algos.Counted.options.times=${twice:10}"


def test_a_script_needs_no_main_guard_and_may_be_interrupted_and_go_on(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    counted = with_reference(tmp_path_factory, tmp_path / "outputs")
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "gate").mkdir()
    process = subprocess.Popen(
        [
            sys.executable,
            "script.py",
            "experiment.name=t",
            "device=cpu",
            "execution.workers=1",
            *SMALL,
            *counted,
            TWICE,
        ],
        cwd=tmp_path,
        env={**os.environ, "GATE": str(tmp_path / "gate"), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for(lambda: process.poll() is not None or _at_the_gate(tmp_path / "outputs"))
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=600)[0]
    assert process.returncode == 0, said
    assert said.count("begun") == 1
    assert "interrupted interrupted" in said
    assert f"ended done 0 {{'count': {2 * 60 * 20}.0, 'torch': 0.0}}" in said
    assert "\x1b" not in said


def _at_the_gate(output_dir: Path) -> bool:
    return (output_dir / "t/latest/journal.jsonl").exists() and any(
        "/r2/count" in job for job in events(output_dir, "JobStarted")
    )


def test_a_notebook_runs_and_shows_experiments(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = tmp_path / "outputs"
    counted = with_reference(tmp_path_factory, outputs)
    settings = ["experiment.name=mine", "device=cpu", "execution.workers=1", "rounds_of_training=1", *SMALL]
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    cells = [
        f"import pipeline\nrun = pipeline.load_run('t', output_dir={str(calm_run(tmp_path_factory))!r})\nrun",
        "sorted(run.results.algo.unique()), len(run.samples), run.timeline.outcome.unique().tolist()",
        "[str(run.curves.dtypes[name]) for name in ('seed', 'loss')], run.pooled.value.notna().any().item()",
        f"mine = pipeline.run({[*settings, *counted]!r})",
        "mine.exit_code, mine.state",
        f"pipeline.load_run('other', output_dir={str(outputs)!r})",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    book.cells[-1].metadata["tags"] = ["raises-exception"]
    NotebookClient(
        book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown, frames, types, computed, ended, wrong = (cell.outputs for cell in book.cells)
    assert "PITA" in shown[0].data["text/html"]
    assert frames[0].data["text/plain"] == "(['PITA', 'QSharp', 'reference'], 200, ['done'])"
    assert types[0].data["text/plain"] == "(['Int64', 'float64'], True)"
    lines = "".join(output.text for output in computed)
    assert "Counted round 1: done" in lines
    assert "\x1b" not in lines
    assert "\r" not in lines
    assert {output.output_type for output in computed} == {"stream"}
    assert ended[0].data["text/plain"] == "(0, 'done')"
    assert [line.startswith("ConfigError: ") and "other" in line for line in wrong[0].traceback] == [True]
