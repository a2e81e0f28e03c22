"""``slurm``: batch scripts written for commands of this program, and submitted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pipeline import arithmetic
from pipeline.errors import ConfigError, PipelineError
from pipeline.files import open_plain, write_whole
from pipeline.runs.report.format import command
from pipeline.slurm.lint import check_script, check_text
from pipeline.slurm.script import ORIGIN, JobRequest, check_request, interpreter, script_text, shell_word
from pipeline.terminal.check import Check, Verdict
from pipeline.terminal.console import make_console, say

_TIMEOUT_S = 120.0
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_TIME_FORMAT")


def write(request: JobRequest, out: Path | None, *, submit: bool, parsable: bool) -> None:
    """Write or print a script, and submit it if asked.

    Raises:
        PipelineError: The request is wrong, the file cannot be written, or Slurm does not take it.
    """
    check_request(request)
    printed = str(out) == "-"
    if submit and printed:
        raise ConfigError("--out - prints the script; with --submit it needs a file")
    name = re.sub(r"[^\w.-]+", "-", request.options.get("job-name", request.name)).strip(".-") or "job"
    file = out if out and not printed else Path(f"{name}.sbatch")
    text = script_text(request, interpreter(sys.executable, Path.cwd()), file.name)
    checks = check_text(text)
    for check in checks:
        if check.verdict is Verdict.FAIL:
            raise ConfigError(f"{check.name}: {check.detail}. Try: {check.remedy}")
    former = "" if printed else _write(file, text)
    _tell(checks, parsable=parsable or printed)
    if printed:
        sys.stdout.write(text)
    elif not parsable:
        say(make_console(), f"wrote {file}" + (former and f"; what it was before is {former}"))
    if submit:
        _tell_job(_submitted(file), request.output, parsable=parsable)
        if request.command[0] == "run" and not parsable:
            given = dict(word.split("=", 1) for word in request.command if "=" in word)
            watched = f"status {shell_word(given.get('experiment.name', request.name))} --watch"
            say(make_console(), "how far it is:", copy=command(watched, Path(given.get("output_dir", "outputs"))))
    elif not (printed or parsable):
        say(make_console(), "submit it by", copy=f"python -m pipeline slurm submit {file}")


def _write(file: Path, text: str) -> str:
    """Write a script; what this command had written there before is kept under a name, which is returned."""
    kept = ""
    try:
        if file.exists():
            with open_plain(file, follow=True) as former:  # a device may have no end
                before = former.read().decode(errors="replace")
            if ORIGIN not in before.split("\n")[:2]:
                raise ConfigError(
                    f"there is a file {file} that this command has not written; give another by --out"
                )
            if before != text:
                kept = f"{file}.bak"
                file.replace(kept)
        write_whole(file, text)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}") from error
    return kept


def submit(words: Sequence[str], options: Mapping[str, str], *, anyway: bool, parsable: bool) -> None:
    """Check a script and submit it.

    Args:
        words: The script and its arguments.
        options: Of sbatch, which win over those of the script.
        anyway: Also with faults.
        parsable: Print the id alone.

    Raises:
        PipelineError: The words are wrong, the script is, or Slurm does not take it.
    """
    if not words:
        raise ConfigError("which script? pipeline slurm submit --partition long compare.sbatch")
    checks = check_script(Path(words[0]), None, options)
    _tell(checks, parsable=parsable)
    if any(check.verdict is Verdict.FAIL for check in checks) and not anyway:
        raise ConfigError(f"{words[0]} would not do what is meant, see above; --anyway submits it all the same")
    _tell_job(_submitted(Path(words[0]), options, words[1:]), parsable=parsable)


def _submitted(
    script: Path,
    options: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    timeout_s: float = _TIMEOUT_S,
) -> str:
    """Give a script to sbatch, from the folder in which this process is.

    Returns:
        The id of the job.

    Raises:
        PipelineError: Slurm is not here, refuses the job, or does not answer.
    """
    program = shutil.which("sbatch")
    if program is None:
        raise PipelineError(
            "there is no sbatch here: submit where Slurm's programs are, as on the login node of a cluster, or "
            f"load their module. The script stands in {script}"
        )
    given = [f"--{name}={value}" if value else f"--{name}" for name, value in (options or {}).items()]
    # A job does not begin with the variables of a job that this process is in.
    outside = arithmetic.outside(os.environ)
    try:
        done = subprocess.run(
            [program, "--parsable", *given, str(script.absolute()), *arguments],
            env={name: text for name, text in outside.items() if not name.startswith("SLURM_") or name in _KEPT},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PipelineError(
            f"sbatch did not answer within {timeout_s:g} s. The job may have been taken all the same: look by "
            "squeue --me before you submit it again"
        ) from error
    except OSError as error:
        raise PipelineError(f"cannot start {program}: {error.strerror}") from error
    said = done.stdout.decode(errors="replace").strip().rpartition("\n")[2]
    if done.returncode or not (found := re.fullmatch(r"(\d+)(?:;\S+)?", said)):
        why = re.sub(
            r"^sbatch: (?:error: |fatal: )?", "", done.stderr.decode(errors="replace"), flags=re.MULTILINE
        )
        why = why.strip().replace("\n", "; ") or said or f"exit code {done.returncode}"
        raise PipelineError(f"sbatch refuses {script}: {why}")
    return found[1]


def _tell(checks: Iterable[Check], *, parsable: bool) -> None:
    for check in checks:
        if check.verdict is not Verdict.PASS:
            told = f"{check.verdict.name.lower()}: {check.name}: {check.detail}. Try: {check.remedy}"
            say(make_console(stderr=parsable), told, "bold")


def _tell_job(job: str, output: str = "", *, parsable: bool) -> None:
    console = make_console()
    if parsable:
        say(console, job)
        return
    say(console, f"submitted job {job}", "bold")
    if output:
        say(console, f"what it prints: {output.replace('%j', job).replace('%A', job)}")
    say(console, "where it stands:", copy=f"squeue --job {job}")
