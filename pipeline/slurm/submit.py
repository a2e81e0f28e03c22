"""Hands a batch script to Slurm: the one module here that starts a program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline import arithmetic
from pipeline.errors import PipelineError

SBATCH = "sbatch"
_TIMEOUT_S = 120.0
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_TIME_FORMAT")
_ID = re.compile(r"(\d+)(?:;\S+)?")
_SAID = re.compile(r"^sbatch: (?:error: |fatal: )?", re.MULTILINE)


def submit(
    script: Path, options: Sequence[str] = (), arguments: Sequence[str] = (), timeout_s: float = _TIMEOUT_S
) -> str:
    """Hand over a script, from the folder in which this process is.

    Args:
        script: The file.
        options: Of sbatch, which win over the lines of the script.
        arguments: Of the script.
        timeout_s: Seconds that Slurm may take to answer.

    Returns:
        The id of the job.

    Raises:
        PipelineError: Slurm is not here, refuses the job, or does not answer.
    """
    program = shutil.which(SBATCH)
    if program is None:
        raise PipelineError(
            f"there is no {SBATCH} here: submit where Slurm's programs are, as on the login node of a cluster, or "
            f"load their module. The script stands in {script}"
        )
    words = [program, "--parsable", *options, str(script.absolute()), *arguments]
    try:
        done = subprocess.run(
            words,
            env=submission_environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PipelineError(
            f"{SBATCH} did not answer within {timeout_s:g} s. The job may have been taken all the same: look by "
            "squeue --me before you submit it again"
        ) from error
    except OSError as error:
        raise PipelineError(f"cannot start {program}: {error.strerror}") from error
    said = done.stdout.decode(errors="replace").strip().rpartition("\n")[2]
    if done.returncode or not (found := _ID.fullmatch(said)):
        why = _SAID.sub("", done.stderr.decode(errors="replace")).strip().replace("\n", "; ")
        raise PipelineError(f"{SBATCH} refuses {script}: {why or said or f'exit code {done.returncode}'}")
    return found[1]


def submission_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a job begins with: the variables of this process without those of a job that this process is in."""
    outside = arithmetic.outside(environ)
    return {name: value for name, value in outside.items() if not name.startswith("SLURM_") or name in _KEPT}
