"""Become the program of a rank of a trial, with the tracker switched off in all ranks but rank 0.

    torchrun ... python -m pipeline.sweeps.rank_zero PROGRAM ARGUMENTS

Otherwise a training on 8 GPUs would be 8 runs there, or 8 that write to one.
"""

import os
import sys
from collections.abc import Mapping

_OF_A_RUN = ("WANDB_SWEEP_ID", "WANDB_RUN_ID")
"""Variables of a run, without WANDB_SWEEP_PARAM_PATH: `wandb.config` has the parameters in every rank."""


def rank_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of this rank; only the first rank has a run to write to."""
    if environment.get("RANK", "0") in ("", "0"):
        return dict(environment)
    rest = {name: value for name, value in environment.items() if name not in _OF_A_RUN}
    return {**rest, "WANDB_MODE": "disabled"}


def main() -> None:
    """Become the program."""
    # The same process: torchrun watches this number, and signals reach the program.
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], rank_environment(os.environ))  # noqa: S606


if __name__ == "__main__":
    main()
