"""What a machine may be short of when a process is to be started or a turn taken, and when that is tried again.

Descriptors, processes and memory come back when others end. So nothing is wrong with the trial: it goes back to
those that wait, and starts pause for longer and longer, until something runs again or it has been tried enough.
What has ended, and could not be written, is written in the next turn that can be taken.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

from pipeline.errors import WorkerError

_WORDS = {
    errno.EMFILE: "this process has as many files open as it may (`ulimit -n` says how many)",
    errno.ENFILE: "the machine has as many files open as it may",
    errno.EAGAIN: "there are as many processes as there may be (see `ulimit -u`, and the limits of a container)",
    errno.ENOMEM: "there is no memory for another process",
}
_MOST = 6
_FIRST_S, _LONGEST_S = 1.0, 60.0


def shortage(error: BaseException | None) -> str:
    """What the system was short of, in words; "" for an error of another kind."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _WORDS:
            return _WORDS[error.errno]
        error = error.__cause__
    return ""


class Pauses:
    """When something may be started again after the system could not.

    Attributes:
        what: The system was short of last, in words; "" as long as it was short of nothing.
    """

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare.

        Args:
            say: Told a line for the user the first time.
            clock: Monotonic seconds.
        """
        self._say, self._clock = say, clock
        self._times, self._until, self.what = 0, 0.0, ""

    def on(self) -> bool:
        """Whether nothing is to be started now."""
        return self._clock() < self._until

    def over(self) -> None:
        """Something has run."""
        self._times = 0

    def begin(self, what: str) -> None:
        """Start nothing for a while: that is what the system is short of."""
        if not self._times:
            self._say(f"no trial can be started now: {what}. What waits is tried again")
        self._until = self._clock() + min(_FIRST_S * 2**self._times, _LONGEST_S)
        self._times, self.what = self._times + 1, what

    def give_up(self) -> None:
        """Where nothing runs whose end could help, see that it was not tried often enough.

        Raises:
            WorkerError: It was.
        """
        if self._times > _MOST:
            raise WorkerError(f"no trial can be started: {self.what}. It was tried {self._times} times in a row")
