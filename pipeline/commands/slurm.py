"""``slurm``: batch scripts written for commands of this program, and handed over."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from pipeline.errors import ConfigError
from pipeline.files import open_plain, write_whole
from pipeline.runs.report.format import command
from pipeline.slurm.header import KNOWN, Unreadable, is_misspelt, no_option, options_of, split_words
from pipeline.slurm.lint import check_script, check_text
from pipeline.slurm.request import JobRequest, Kind, check_request
from pipeline.slurm.script import ORIGIN, has_own_python, interpreter, output_of, script_text, shell_word
from pipeline.slurm.submit import submit as hand_over
from pipeline.terminal.check import Check, Verdict
from pipeline.terminal.console import make_console, say

_BEGINNING = 4096
"""Bytes that hold the two lines by which a script of this command is known."""

# -- writing ---------------------------------------------------------------------------------------------------


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "job"


def _text(request: JobRequest, file: Path) -> str:
    python = "python" if has_own_python(request) else interpreter(sys.executable, Path.cwd())
    return script_text(request, python, file.name)


def write(request: JobRequest, out: Path | None, *, submit: bool, parsable: bool) -> None:
    """Write or print a script, and hand it over if asked.

    Raises:
        PipelineError: The request is wrong, the file cannot be written, or Slurm does not take it.
    """
    check_request(request)
    if submit and str(out) == "-":
        raise ConfigError("--out - prints the script; with --submit it needs a file")
    file = Path(f"{_plain(request.name)}.sbatch")
    if str(out) == "-":
        _print(request, file)
    else:
        _write(request, out or file, submit=submit, parsable=parsable)


def _print(request: JobRequest, file: Path) -> None:
    text = _text(request, file)
    _tell(filter(_wrong, check_text(text)), parsable=True)
    sys.stdout.write(text)


def _write(request: JobRequest, file: Path, *, submit: bool, parsable: bool) -> None:
    text = _text(request, file)
    _refuse_foreign(file)
    try:
        former = _keep_former(file, text)
        write_whole(file, text)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}") from error
    _tell(filter(_wrong, check_text(text)), parsable=parsable)
    if not parsable:
        say(make_console(), f"wrote {file}" + (former and f"; what it was before is {former}"))
    if submit:
        _tell_job(hand_over(file), output_of(request), parsable=parsable)
        if request.kind is Kind.run and not parsable:
            say(make_console(), "how far it is:", copy=_status(request))
    elif not parsable:
        say(make_console(), "submit it by", copy=f"python -m pipeline slurm submit {file}")


def _status(request: JobRequest) -> str:
    """What to type to see how far an experiment is."""
    given = dict(word.split("=", 1) for word in request.command if "=" in word)
    name = shell_word(given.get("experiment.name", request.name))
    return command(f"status {name} --watch", Path(given.get("output_dir", "outputs")))


def _keep_former(file: Path, text: str) -> str:
    """Keep a script that is about to be written otherwise under another name, which is returned; "" for none."""
    if not file.is_file() or file.read_text(errors="replace") == text:
        return ""
    kept = file.with_name(f"{file.name}.bak")
    file.replace(kept)
    return str(kept)


def _refuse_foreign(file: Path) -> None:
    """Leave alone what somebody has written by hand."""
    try:
        with open_plain(file, follow=True) as former:  # a device may have no end, and nobody may write into a pipe
            begin = former.read(_BEGINNING).decode(errors="replace").split("\n")[:2]
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}") from error
    if ORIGIN not in begin:
        raise ConfigError(f"there is a file {file} that this command has not written; give another by --out")


# -- handing over ------------------------------------------------------------------------------------------------


def submit(words: Sequence[str], *, anyway: bool, parsable: bool) -> None:
    """Look a script through and hand it over.

    Args:
        words: Options of sbatch, the script, its arguments.
        anyway: Also with faults.
        parsable: Print the id alone.

    Raises:
        PipelineError: The words are wrong, the script is, or Slurm does not take it.
    """
    options, script, arguments = _split(words)
    faults = [check for check in check_script(script, None, dict(options_of(options))) if _wrong(check)]
    _tell(faults, parsable=parsable)
    if any(check.verdict is Verdict.FAIL for check in faults) and not anyway:
        raise ConfigError(f"{script} would not do what is meant, see above; --anyway hands it over all the same")
    _tell_job(hand_over(script, options, arguments), parsable=parsable)


def _split(words: Sequence[str]) -> tuple[list[str], Path, list[str]]:
    """Options of sbatch, the script and its arguments.

    Raises:
        ConfigError: There is no script, an option is none of sbatch's, or stands where it would not be one.
    """
    try:
        options, rest = split_words(words)
        unknown = [name for name, _ in options_of(options) if is_misspelt(name)]
    except Unreadable as problem:
        raise ConfigError(f"{problem}. First the options of sbatch, then the script: {_SUBMIT}") from problem
    if unknown:
        raise ConfigError(no_option(unknown[0]))
    if not rest:
        raise ConfigError(f"which script? {_SUBMIT}")
    late = [word for word in rest[1:] if word.startswith("--") and word[2:].partition("=")[0] in KNOWN]
    if late:
        raise ConfigError(f"{late[0]} comes after the script, to which it would be given: {_SUBMIT}")
    return options, Path(rest[0]), rest[1:]


_SUBMIT = "pipeline slurm submit --partition long compare.sbatch"


def _wrong(check: Check) -> bool:
    return check.verdict is not Verdict.PASS


def _tell(faults: Iterable[Check], *, parsable: bool) -> None:
    console = make_console(stderr=parsable)
    for check in faults:
        say(console, f"{check.verdict.name.lower()}: {check.name}: {check.detail}. Try: {check.remedy}", "bold")


def _tell_job(job: str, output: str = "", *, parsable: bool) -> None:
    console: Console = make_console()
    if parsable:
        say(console, job)
        return
    say(console, f"submitted job {job}", "bold")
    if output:
        say(console, f"what it prints: {output.replace('%j', job).replace('%A', job)}")
    say(console, "where it stands:", copy=f"squeue --job {job}")
