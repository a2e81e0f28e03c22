"""``python -m pipeline slurm``: batch scripts for Slurm written and checked."""

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_group

from pipeline.commands import launch, multirun, sweep, typed
from pipeline.commands.request import check_fits_ray
from pipeline.config import checks, load, schema
from pipeline.engine.launch import find_program
from pipeline.errors import ConfigError, unknown_name
from pipeline.files import write_whole
from pipeline.plan.build import check_size
from pipeline.runs.report.format import command as command_line
from pipeline.slurm import ray_nodes
from pipeline.slurm import script as batch
from pipeline.slurm.lint import check_script, check_text
from pipeline.sweeps import storage
from pipeline.sweeps.command import check_program, overrides_of
from pipeline.sweeps.file import read_sweep
from pipeline.terminal.console import Verdict, make_console, say

app = typer.Typer(
    no_args_is_help=True,
    epilog=typed.examples(
        "pipeline slurm write --gres gpu:8 --time 24:00:00 run experiment.name=compare profile=a100_80gb",
        "pipeline slurm lint compare.sbatch",
    ),
)


_COMMANDS = ("run", "sweep", "launch")


class _WithSbatch(TyperCommand):
    """A command that takes every option of sbatch beside its own, as ``--sbatch NAME=VALUE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments as Click does."""
        own = {"help": True}  # name -> whether it takes no value
        for option in self.params:
            own |= {name[2:]: getattr(option, "is_flag", False) for name in option.opts if name.startswith("--")}
        options, rest = batch.options_of(args, _COMMANDS, [name for name, is_flag in own.items() if not is_flag])
        words = [f"--{name}" if own.get(name) else f"--{name}={value}" for name, value in options if name in own]
        words += [f"--sbatch={name}={value}" for name, value in options if name not in own]
        return super().parse_args(ctx, [*words, "--", *rest])


@app.command(
    cls=_WithSbatch,
    help="Write a batch script for a command of this program. Options of sbatch come first, as sbatch has them: "
    "--gres, --time, --partition, --account, --mem, --nodes, --array, --no-requeue, ...",
    epilog=typed.examples(
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
    sbatch: Annotated[list[str] | None, typer.Option(hidden=True)] = None,
) -> None:
    """Write or print a script."""
    request = replace(
        checked(command or [], ray=ray),
        options={name: value for name, _, value in (option.partition("=") for option in sbatch or [])},
        notice_s=notice,
        srun=[word for words in srun or () for word in _words_of_srun(words)],
        setup=setup or (),
    )
    batch.check_request(request)
    name = re.sub(r"[^\w.-]+", "-", request.options.get("job-name", request.name)).strip(".-") or "job"
    printed = str(out) == "-"
    file = out if out and not printed else Path(f"{name}.sbatch")
    text = batch.script_text(request, batch.interpreter(sys.executable, Path.cwd()), file.name)
    for check in check_text(text):
        problem = f"{check.name}: {check.detail}. Try: {check.remedy}"
        if check.verdict is Verdict.FAIL:
            raise ConfigError(problem)
        if check.verdict is Verdict.WARN:
            say(make_console(stderr=True), f"warning: {problem}", "bold")
    if printed:
        sys.stdout.write(text)
        return
    console, former = make_console(), _write(file, text)
    say(console, f"wrote {file}" + (former and f"; what it was before is {former}"))
    say(console, "submit it by", copy=f"sbatch {shlex.quote(str(file))}")
    if request.watch:
        say(console, "how far it is:", copy=request.watch)


def _words_of_srun(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--srun {shlex.quote(text)}: {error}") from error
    if not words or not words[0].startswith("-"):
        raise ConfigError(f"--srun {shlex.quote(text)}: must be options of srun, as --srun=--mpi=pmix")
    return words


def _write(file: Path, text: str) -> str:
    """Write a script; another file of its name is kept under a name that is returned."""
    kept = ""
    try:
        if file.is_file() and file.read_bytes() != text.encode():
            kept = f"{file}.bak"
            file.replace(kept)
        write_whole(file, text)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}") from error
    return kept


@app.command(epilog=typed.examples("pipeline slurm lint compare.sbatch"))
def lint(script: Path) -> int:
    """Say what would hang, idle or be lost in a batch script."""
    from pipeline.commands.check import print_checks

    return print_checks(check_script(script), "sbatch may have it.")


# -- the command of a job ----------------------------------------------------------------------------------------
# Checked as it would check itself once it has waited in the queue, as far as that can be told without its devices.


_USAGE = "Give it last: pipeline slurm write --gres gpu:8 run experiment.name=NAME KEY=VALUE ..."
_RAY = ("execution.backend=ray", "execution.ray.address=the.first.node:20000")
"""Settings that a script with --ray adds itself."""


def checked(words: Sequence[str], *, ray: bool = False) -> batch.JobRequest:
    """Refuse what the command of a job would refuse.

    Args:
        words: Command of the job, without ``python -m pipeline``.
        ray: Whether it brings up a Ray cluster.

    Raises:
        ConfigError: It is no command for a job, or one that would fail at once.
    """
    if not words:
        raise ConfigError(f"what is the job to run? {_USAGE}")
    first, *rest = words
    if first == "run":
        config = _run_config(rest, _RAY if ray else ())
        name = config.experiment.name
        return batch.JobRequest(
            command=words,
            name=name,
            ray=ray,
            widest=max(schema.devices_per_training(config), config.generation.gpus_per_job),
            on_cpu=config.device is schema.DeviceChoice.cpu,
            watch=command_line(f"status {shlex.quote(name)} --watch", Path(config.output_dir)),
        )
    if first == "sweep":
        return batch.JobRequest(command=words, name=_sweep_name(rest), ray=ray)
    if first == "launch":
        return _launch(rest, ray=ray)
    raise ConfigError(f"{unknown_name('command for a job', first, _COMMANDS)} {_USAGE}")


def _parsed(family: typer.Typer, of: str, name: str, words: Sequence[str]) -> Mapping[str, Any]:
    """Return the parsed arguments of a command, by name; `of` is the prefix of its name.

    Raises:
        ConfigError: It would not take them.
    """
    command: Any = get_group(family)
    if "--help" in (words[: words.index("--")] if "--" in words else words):
        raise ConfigError(f"{name} {' '.join(words)}: that prints its help and ends, which is no work for a job")
    try:
        return dict(command.commands[name].make_context(f"{of}{name}", list(words)).params)
    except typed.WRONG_USE as error:
        raise ConfigError(typed.in_words(error)) from error


def _run_config(words: Sequence[str], more: Sequence[str]) -> schema.Config:
    flags = multirun.read_flags(words)
    multirun.refuse_repeats(flags.typed)
    if any((flags.help, flags.hydra_help, flags.version, flags.cfg, flags.info, flags.shell_completion)):
        raise ConfigError(f"run {' '.join(words)}: that prints something and ends, which is no work for a job")
    settings = next(multirun.requests(flags.overrides)) if flags.multirun else list(flags.overrides)
    if flags.config_dir:
        settings += overrides_of({"hydra.searchpath": [f"file://{Path(flags.config_dir).absolute()}"]})
    for setting in settings if more else ():
        key, _, value = setting.partition("=")
        if key == "execution.ray.address" or (key == "execution.backend" and value != schema.Backend.ray.value):
            raise ConfigError(f"{setting} with --ray: the script brings a cluster up, and has the run use that")
    config = load.load_config([*settings, *more])
    checks.check_config(config)
    check_fits_ray(config)
    check_size(config)
    return config


def _sweep_name(words: Sequence[str]) -> str:
    if not words or words[0] not in ("agent", "run"):
        raise ConfigError("a job of a sweep is an agent of it: pipeline slurm write --array 0-3 sweep agent NAME")
    arguments = _parsed(sweep.app, "python -m pipeline sweep ", words[0], words[1:])
    if words[0] == "agent":
        return storage.choose_sweep(arguments["output_dir"].absolute(), arguments["name"]).name
    chosen = read_sweep(arguments["file"], name=arguments["name"], overrides=arguments["settings"] or [])
    check_program(chosen)
    sweep.check_settings(chosen)
    return chosen.name


def _launch(words: Sequence[str], *, ray: bool) -> batch.JobRequest:
    request = launch.requested(**_parsed(launch.app, "python -m pipeline ", "launch", words))
    if request.nnodes != 1 or request.node_rank is not None or request.master_addr is not None:
        raise ConfigError("--nnodes, --node-rank, --master-addr: the script says them; --nodes is before launch")
    options = list(words[: len(words) - len(request.program)])
    program = find_program(request.program, Path.cwd())
    separator = [] if options[-1:] == ["--"] else ["--"]
    command = ["launch", *options, *separator, *request.program]
    return batch.JobRequest(command=command, name=Path(program.name).stem, ray=ray)


# -- inside of a job ---------------------------------------------------------------------------------------------
# What a script of `slurm write --ray` calls.


ray_app = typer.Typer()
app.add_typer(ray_app, name="ray", hidden=True)
Address = Annotated[str, typer.Option(help="HOST:PORT of the head.")]


@ray_app.command(hidden=True)
def address() -> None:
    """On the first node: print where the head of Ray is going to be."""
    typer.echo(ray_nodes.head_address(os.environ))


@ray_app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def start(
    address: Address,
    words: Annotated[list[str] | None, typer.Argument(help="Further options of `ray start`.")] = None,
    head: Annotated[bool, typer.Option("--head", help="Whether this is the first node.")] = False,
) -> None:
    """On each node: be a node of Ray, by `ray start`, until SIGUSR1; leave nothing behind."""
    ray_nodes.keep_node(address, os.environ, words or [], head=head)


@ray_app.command(hidden=True)
def wait(
    address: Address,
    within: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds that they are given.")] = 300,
    head_pid: Annotated[int | None, typer.Option(help="Process of this node that has the head.")] = None,
) -> None:
    """On the first node: wait until all nodes of the job have joined, and name those that have not."""
    import psutil

    def lives() -> bool:
        return head_pid is None or psutil.pid_exists(head_pid)

    there, missing = ray_nodes.wait_for_nodes(address, os.environ, within, lives)
    typer.echo(f"Ray has {', '.join(there)}")
    if missing:
        consequence = f"after {within:g} s; the run begins on the others, and takes these when they come"
        typer.echo(f"warn: Ray has no {', '.join(missing)} {consequence}", err=True)
