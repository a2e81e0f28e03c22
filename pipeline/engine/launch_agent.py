"""Start and watch a program's ranks: torchrun with the program's own exit code.

Only this process imports torch; the launcher starts it with the environment that the ranks are to have.
"""

import os
import signal
import sys
from functools import partial
from typing import Any

from pipeline.errors import describe_exit
from pipeline.machine import descendants
from pipeline.machine.descendants import begin
from pipeline.machine.memory import imported_for_good
from pipeline.terminal import streams

SIGNALLED = 128
"""A shell adds this to the number of a signal."""
NETWORK = 74
"""Exit code if the machines did not find each other (EX_IOERR of sysexits.h)."""


def main() -> int:
    """Run torchrun with the arguments that follow the settings of this process.

    The setting `listeners` has the descriptor of the socket where ranks meet if they are all on this machine.

    Returns:
        The exit code of the rank that failed first; 0 if none did.
    """
    # End by a signal that torchrun passes on, so that the ranks also stop when the launcher is gone.
    settings = begin(signal.SIGTERM)
    descendants.adopt_orphans()
    streams.install()
    try:
        return _run(sys.argv[2:], settings["grace_s"], settings["listeners"])
    finally:
        descendants.end_own()


def _run(arguments: list[str], grace_s: int, listeners: list[int]) -> int:
    with imported_for_good():
        from torch.distributed import DistError
        from torch.distributed.elastic.multiprocessing import PContext, SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.elastic.rendezvous import RendezvousError
        from torch.distributed.run import parse_args, run

    close = PContext.close

    def close_soon(self: PContext, death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
        # When a rank fails, torch gives the others half a minute regardless of its settings.
        close(self, death_sig, min(timeout, grace_s))

    PContext.close = close_soon  # type: ignore[method-assign]
    for listener in listeners:
        _meet_at(listener)
    try:
        run(parse_args(arguments))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        return _explain(error)
    except SignalException as stopped:
        return SIGNALLED + int(stopped.sigval)
    except (DistError, RendezvousError) as error:
        # A timeout, a refused connection or an address in use: one line says which.
        _say(f"the machines did not find each other: {str(error).strip().splitlines()[0]}")
        return NETWORK
    return 0


def _meet_at(listener: int) -> None:
    """Have torch's store use a socket that is already open; its own socket would listen on every interface."""
    from torch.distributed.elastic.rendezvous import static_tcp_rendezvous

    os.set_inheritable(listener, False)
    rendezvous: Any = static_tcp_rendezvous
    rendezvous.TCPStore = partial(rendezvous.TCPStore, master_listen_fd=listener)


def _explain(error: Any) -> int:
    """Say which rank has failed first, and return its exit code, from a `ChildFailedError`."""
    rank, first = min(
        error.failures.items(), key=lambda item: (item[1].timestamp, _hindsight(item[1].exitcode), item[0])
    )
    others = f"; {len(error.failures) - 1} more failed or were stopped" if len(error.failures) > 1 else ""
    _say(f"rank {rank} (pid {first.pid}) ended with {describe_exit(first.exitcode)}{others}")
    code: int = first.exitcode if first.exitcode > 0 else SIGNALLED - first.exitcode
    return code


def _hindsight(exit_code: int) -> int:
    """Rank how likely an exit is only a consequence of another rank's exit.

    The times of exits are in whole seconds, too coarse to tell the first.
    """
    if exit_code == -signal.SIGTERM:  # the agent stopped it
        return 3
    if exit_code == 1:  # an exception, as when the others do not answer
        return 2
    return 1 if exit_code == -signal.SIGABRT else 0  # NCCL aborts when the others do not answer


def _say(text: str) -> None:
    sys.stderr.write(f"launch: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
