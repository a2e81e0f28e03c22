"""What W&B's agent runs for a trial on several devices: the program as ranks, one on each.

    wandb agent -> python -m pipeline.sweeps.online.under_agent PROGRAM ARGUMENTS
        -> torchrun -> rank_zero -> PROGRAM

The slot that holds the devices says how many there are. A trial may use fewer: its parameter ``num_gpus``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

from pipeline.engine.launch.request import LOOPBACK, Meeting
from pipeline.engine.launch.run import listen, ranks_command
from pipeline.engine.launch.supervise import supervise
from pipeline.errors import PipelineError

DEVICES = "PIPELINE_TRIAL_DEVICES"
"""Environment variable: how many devices the program has."""
GRACE_S = 20
REFUSED = 2
_NUM_GPUS = re.compile(r"(?:--)?num_gpus(?:=(\d+))?")


def ranks_of(words: Sequence[str], devices: int) -> int:
    """How many ranks a program has: as many as it is told, else one on each device.

    Args:
        words: Its arguments.
        devices: How many there are.

    Raises:
        PipelineError: It needs more than there are.
    """
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if found := _NUM_GPUS.fullmatch(word):
            given = found[1] or following
            if not given.isdigit() or not 1 <= int(given) <= devices:
                raise PipelineError(
                    f"this trial needs num_gpus={given}, and its agent has {devices}: give agents more with "
                    "--gpus-per-agent, or take the value out of the sweep"
                )
            return int(given)
    return devices


def main() -> int:
    """Run the program; its exit code."""
    words = sys.argv[1:]
    try:
        ranks = ranks_of(words, int(os.environ.get(DEVICES, "1")))
    except PipelineError as error:
        sys.stderr.write(f"error: {error}\n")
        return REFUSED
    with listen(None) as server:
        arguments = [
            *Meeting(1, 0, LOOPBACK, server.getsockname()[1]).torchrun(),
            f"--nproc-per-node={ranks}",
            "--no-python",
            sys.executable,
            *("-m", "pipeline.sweeps.agents.rank_zero"),
            *words,
        ]
        command, environment = ranks_command(arguments, os.environ, GRACE_S, server)
        return supervise(command, environment, GRACE_S, server=server)


if __name__ == "__main__":
    sys.exit(main())
