"""What sbatch answers, or that it does not, is told in one message."""

from pathlib import Path

import pytest

from pipeline.errors import PipelineError
from pipeline.slurm.submit import submission_environment, submit


def sbatch(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """Have an sbatch of our own; the script that it is given."""
    program = folder / "sbatch"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    (folder / "a script").write_text("#!/bin/bash\n")
    return folder / "a script"


def test_the_id_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = sbatch(tmp_path, monkeypatch, 'printf "%s|" "$@" >"${0%/*}/given"; echo "a word"; echo "41;cluster"')
    assert submit(script, ["-p", "long run"], ["$(x)"]) == "41"
    assert (tmp_path / "given").read_text() == f"--parsable|-p|long run|{script}|$(x)|"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            'echo "sbatch: error: Invalid account" >&2; echo "sbatch: error: x" >&2; exit 1',
            "Invalid account; x",
        ),
        ("exit 3", "exit code 3"),
        ("echo hello", "refuses .*: hello"),
        ("sleep 60", "did not answer within 0.2 s. The job may have been taken"),
    ],
)
def test_what_does_not_go_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str) -> None:
    script = sbatch(tmp_path, monkeypatch, body)
    with pytest.raises(PipelineError, match=said) as refused:
        submit(script, timeout_s=0.2 if "sleep" in body else 60)
    assert "\n" not in str(refused.value)


def test_no_slurm_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PipelineError, match="there is no sbatch here"):
        submit(tmp_path / "x.sbatch")


def test_a_job_knows_nothing_of_the_job_that_it_was_submitted_from() -> None:
    given = {"HOME": "/x", "SLURM_CONF": "/y", "SLURM_JOB_ID": "7", "SLURM_MEM_PER_NODE": "2", "SBATCH_QOS": "a"}
    assert given.keys() & submission_environment(given).keys() == {"HOME", "SLURM_CONF", "SBATCH_QOS"}
