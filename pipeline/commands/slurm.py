"""``python -m pipeline slurm``: batch scripts for Slurm written, checked and submitted."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from pipeline import arithmetic
from pipeline.commands.typed import examples
from pipeline.errors import ConfigError, PipelineError
from pipeline.files import open_plain, write_whole
from pipeline.slurm.lint import Starter, check_script, check_text
from pipeline.slurm.script import (
    ORIGIN,
    JobRequest,
    check_request,
    interpreter,
    options_of,
    script_text,
    shell_word,
)
from pipeline.terminal.console import Check, Verdict, make_console, say

app = typer.Typer(
    no_args_is_help=True,
    epilog=examples(
        "pipeline slurm write --gres gpu:8 --time 24:00:00 run experiment.name=compare profile=a100_80gb",
        "pipeline slurm lint compare.sbatch",
        "pipeline slurm submit --partition long compare.sbatch",
    ),
)
ray_app = typer.Typer(
    no_args_is_help=True,
    help="Inside of a job: what a script of `slurm write --ray` calls.",
    epilog=examples("pipeline slurm write --ray --nodes 2 --gres gpu:8 run experiment.name=compare"),
)
app.add_typer(ray_app, name="ray")
Sbatch = Annotated[list[str] | None, typer.Option(hidden=True)]
Parsable = Annotated[bool, typer.Option("--parsable", help="Print the id of the job and nothing else.")]
Address = Annotated[str, typer.Option(help="HOST:PORT of the head.")]
Ranks = Annotated[Starter | None, typer.Option(help="Who starts the ranks of its program; guessed if left out.")]
_TIMEOUT_S = 120.0
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_TIME_FORMAT")


class _WithSbatch(TyperCommand):
    """A command that takes every option of sbatch beside its own, as ``--sbatch NAME=VALUE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Click does."""
        own = {"help": True}  # name -> whether it takes no value
        for each in self.params:
            own |= {name[2:]: getattr(each, "is_flag", False) for name in each.opts if name.startswith("--")}
        given, rest = options_of(args, [name for name, is_flag in own.items() if is_flag])
        words = [
            (f"--{name}" if own[name] else f"--{name}={value}") if name in own else f"--sbatch={name}={value}"
            for name, value in given
        ]
        return super().parse_args(ctx, [*words, "--", *rest])


def _options(given: list[str] | None) -> dict[str, str]:
    return {name: value for name, _, value in (each.partition("=") for each in given or [])}


@app.command(
    cls=_WithSbatch,
    help="Write a batch script for a command of this program. Options of sbatch come first, as sbatch has them: "
    "--gres, --time, --partition, --account, --mem, --nodes, --array, --no-requeue, ...",
    epilog=examples(
        "pipeline slurm write --gres gpu:8 --time 24:00:00 run experiment.name=compare profile=a100_80gb",
        "pipeline slurm write --gres gpu:2 --array 0-3 --time 12:00:00 sweep agent lr",
        "pipeline slurm write --nodes 2 --gres gpu:8 launch -- train.py --lr 1e-3",
        "pipeline slurm write --ray --nodes 4 --gres gpu:8 --time 24:00:00 run experiment.name=compare",
    ),
)
def write(
    command: Annotated[
        list[str] | None, typer.Argument(help="run SETTINGS, sweep agent NAME or launch -- PROGRAM.")
    ] = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Bring up a Ray cluster on all nodes, and run on that.")
    ] = False,
    notice: Annotated[
        int | None,
        typer.Option(min=60, max=65_535, help="Seconds before its end at which it is told to save and stop."),
    ] = None,
    srun: Annotated[
        list[str] | None,
        typer.Option(help="Options of srun, once or several times: '--mpi=pmix --cpu-bind=none'."),
    ] = None,
    setup: Annotated[
        list[str] | None, typer.Option(help="A line of shell that comes first, once for each: 'module load cuda'.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write, '-' to print; JOB-NAME.sbatch if left out.")
    ] = None,
    submit: Annotated[bool, typer.Option("--submit", help="Submit it at once.")] = False,
    parsable: Parsable = False,
    sbatch: Sbatch = None,
) -> None:
    """Write or print a script, and submit it if asked."""
    from pipeline.commands.job_command import checked

    printed = str(out) == "-"
    if submit and printed:
        raise ConfigError("--out - prints the script; with --submit it needs a file")
    known = checked(command or [], ray=ray)
    request = JobRequest(
        command=known.words,
        name=known.name,
        options=_options(sbatch),
        notice_s=notice,
        srun=[word for words in srun or () for word in _words_of_srun(words)],
        setup=setup or (),
        ray=ray,
        widest=known.widest,
        on_cpu=known.on_cpu,
    )
    check_request(request)
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
        if known.watch and not parsable:
            say(make_console(), "how far it is:", copy=known.watch)
    elif not (printed or parsable):
        say(make_console(), "submit it by", copy=f"python -m pipeline slurm submit {shell_word(str(file))}")


def _words_of_srun(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--srun {shlex.quote(text)}: {error}") from error
    if not words or not words[0].startswith("-"):
        raise ConfigError(f"--srun {shlex.quote(text)}: must be options of srun, as --srun=--mpi=pmix")
    return words


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


@app.command(
    help="Say what is wrong with a batch script.",
    epilog=examples("pipeline slurm lint compare.sbatch", "pipeline slurm lint train.sbatch --ranks slurm"),
)
def lint(script: Path, ranks: Ranks = None) -> int:
    """Check a script."""
    from pipeline.commands.check import print_checks

    return print_checks(check_script(script, ranks), "sbatch may have it.")


@app.command(
    cls=_WithSbatch,
    help="Check a batch script and submit it: [OPTIONS OF SBATCH] SCRIPT [ITS ARGUMENTS].",
    epilog=examples(
        "pipeline slurm submit compare.sbatch",
        "pipeline slurm submit --partition long --exclude n7 compare.sbatch",
    ),
)
def submit(
    words: Annotated[list[str] | None, typer.Argument(metavar="SCRIPT [ARGUMENTS]...")] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also with faults that would stop it.")] = False,
    parsable: Parsable = False,
    sbatch: Sbatch = None,
) -> None:
    """Check a script and submit it."""
    if not words:
        raise ConfigError("which script? pipeline slurm submit --partition long compare.sbatch")
    options = _options(sbatch)
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


# -- inside of a job ---------------------------------------------------------------------------------------------


@ray_app.command(
    help="On the first node: print where the head of Ray is going to be.",
    epilog=examples("pipeline slurm ray address"),
)
def address() -> None:
    """Print it."""
    from pipeline.slurm.ray_nodes import head_address

    typer.echo(head_address(os.environ))


@ray_app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    help="On each node: be a node of Ray, by `ray start`, until SIGUSR1; leave nothing behind.",
    epilog=examples("pipeline slurm ray start --head --address 10.0.0.7:20041 --num-cpus=64 --num-gpus=8"),
)
def start(
    address: Address,
    words: Annotated[list[str] | None, typer.Argument(help="Further options of `ray start`.")] = None,
    head: Annotated[bool, typer.Option("--head", help="Whether this is the first node.")] = False,
) -> None:
    """Be a node."""
    from pipeline.slurm.ray_nodes import keep_node

    keep_node(address, os.environ, words or [], head=head)


@ray_app.command(
    help="On the first node: wait until all nodes of the job have joined, and name those that have not.",
    epilog=examples("pipeline slurm ray wait --address 10.0.0.7:20041 --within 600"),
)
def wait(
    address: Address,
    within: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds that they are given.")] = 300,
    head_pid: Annotated[int | None, typer.Option(help="Process of this node that has the head.")] = None,
) -> None:
    """Wait for them."""
    import psutil

    from pipeline.slurm.ray_nodes import wait_for_nodes

    there, missing = wait_for_nodes(
        address, os.environ, within, lambda: head_pid is None or psutil.pid_exists(head_pid)
    )
    typer.echo(f"Ray has {', '.join(there)}")
    if missing:
        typer.echo(
            f"warn: Ray has no {', '.join(missing)} after {within:g} s; the run begins on the others, and "
            "takes these when they come",
            err=True,
        )
