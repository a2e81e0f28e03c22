"""``python -m pipeline launch``: any program on devices of its own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.commands.typed import examples
from pipeline.config.schema import DeviceChoice
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from pipeline.engine.launch import LaunchRequest

_ID = re.compile("[0-9]{1,9}")  # `str.isdigit` takes what `int` does not

app = typer.Typer()


@app.command(
    context_settings={"allow_extra_args": True, "allow_interspersed_args": False},
    epilog=examples("pipeline launch --gpus 4,5 -- train.py", "pipeline launch --num-gpus 2 -- -m my_module"),
)
def launch(
    program: Annotated[
        list[str] | None, typer.Argument(help="A script, -m MODULE or an executable, and its arguments.")
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(help="These, as 4,5,6,7: LOCAL_RANK i is on the i-th. Ids as in `pipeline gpus`.")
    ] = None,
    num_gpus: Annotated[
        int | None, typer.Option(help="So many, the idlest; every visible one if left out.")
    ] = None,
    device: Annotated[DeviceChoice, typer.Option(help="cpu: no GPUs. Needs --nproc.")] = DeviceChoice.auto,
    nproc: Annotated[int | None, typer.Option(min=1, help="Processes, with --device cpu.")] = None,
    nnodes: Annotated[int, typer.Option(min=1, help="Machines; start the same command on each.")] = 1,
    node_rank: Annotated[
        int | None, typer.Option(help="Which machine this is, from 0; SLURM_NODEID if left out.")
    ] = None,
    master_addr: Annotated[str | None, typer.Option(help="Address of machine 0.")] = None,
    master_port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, help="Port on machine 0; MASTER_PORT or a free one if left out."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Queue for GPUs that others hold.")] = False,
    grace: Annotated[
        int, typer.Option(min=1, help="Seconds that processes have to end before they are killed.")
    ] = 8,
) -> int:
    """Run a program on devices of its own."""
    options = locals()
    from pipeline.engine.launch import launch as carry_out
    from pipeline.engine.launch import say_to_stderr

    return carry_out(requested(**options), say_to_stderr)


def requested(
    *, program: Sequence[str] | None, gpus: str | None, device: DeviceChoice, grace: int, **others: Any
) -> LaunchRequest:
    """Build the launch request from the options of the command.

    Raises:
        ConfigError: One cannot be read, or they contradict each other.
    """
    from pipeline.engine.launch import LaunchRequest

    on_cpu = device is DeviceChoice.cpu
    if on_cpu != (others["nproc"] is not None):
        raise ConfigError("--device cpu and --nproc N go together. With GPUs: --num-gpus N, a process on each")
    if on_cpu and (gpus is not None or others["num_gpus"] is not None):
        raise ConfigError("--device cpu uses no GPU: leave out --gpus and --num-gpus, or --device cpu")
    ids = None if gpus is None else parse_ids(gpus, "--gpus")
    return LaunchRequest(program=program or [], gpus=ids, grace_s=grace, **others)


def parse_ids(text: str, option: str) -> list[int]:
    """Parse ``4,5,6,7`` to numbers.

    Args:
        text: Value of the option.
        option: Name of the option.

    Raises:
        ConfigError: An entry is no number.
    """
    entries = [entry.strip() for entry in text.split(",")]
    wrong = [entry for entry in entries if not _ID.fullmatch(entry)]
    if wrong:
        raise ConfigError(f"{option} {shlex.quote(text)}: '{wrong[0]}' is no id. Write {option} 4,5,6,7")
    return [int(entry) for entry in entries]
