"""A pool of processes that call rewards, each call with a hard deadline.

    GraderPool --- socket per process ---> grader.py (imports the reward, calls it)

A call, of one completion or of several that may be compared, in which a reward hangs, crashes or eats memory costs
its own scores: the process is killed with all its descendants and replaced, and others make its further calls.
Everything is told by deadlines here and acknowledgements there, so a process that holds its interpreter for ever
(a regular expression) is no exception. A process that dies may as well have been killed from outside, as by a
machine short of memory; so the call is made once more, in a fresh process and with no other one beside it, before
it is blamed. Processes die with the one that owns the pool: the kernel sees to it on Linux, and they stay in its
process group, which the engine kills.
"""

from __future__ import annotations

import select
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.config.user_code import import_object
from pipeline.errors import describe_exit
from pipeline.learning.rewards.calling import bind
from pipeline.learning.rewards.grader_process import GraderProcess, end_all
from pipeline.learning.rewards.grading import Graded, Item, PoolSettings, Work
from pipeline.learning.rewards.traits import is_async


class GraderPool:
    """Starts graders when there is work, and keeps them until `close`."""

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self._graders: list[GraderProcess] = []
        self._finalizer = weakref.finalize(self, _close_all, self._graders)

    def __enter__(self) -> GraderPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all graders and what they started. The pool can be used again."""
        _close_all(self._graders)

    def pids(self) -> list[int]:
        """Process ids of the graders."""
        return [grader.process.pid for grader in self._graders]

    def grade(
        self, function: str, options: Mapping[str, Any], calls: Sequence[Sequence[Item]]
    ) -> list[Sequence[Graded]]:
        """Call a reward.

        Args:
            function: Dotted path of the reward; an `async` one is awaited for many calls at once.
            options: Further arguments of the reward.
            calls: What to grade, by call.

        Returns:
            One entry per item of each call, in their order.

        Raises:
            JobError: The reward cannot be imported by a grader, or graders cannot be kept alive.
        """
        work = Work(
            function, dict(options), calls, is_async(bind(import_object(function), options, function).function)
        )
        try:
            while work.open:
                if work.suspects and not work.waiting and not any(grader.tasks for grader in self._graders):
                    self.close()  # for a fresh process, with no other one beside it
                    work.recall_suspect()
                self._start_idle(work)
                self._collect(work)
        except BaseException:
            self.close()  # whoever is interrupted must find no half-answered request later
            raise
        return [work.done[index] for index in range(len(calls))]

    def _start_idle(self, work: Work) -> None:
        for grader in list(self._graders):
            if not grader.tasks and grader.process.poll() is not None:  # nobody's fault, as it had nothing to do
                self._graders.remove(grader)
                end_all([grader])
            elif work.waiting and not grader.tasks and not grader.begin(work):
                self._bury(grader, work)
        while work.waiting and len(self._graders) < self.settings.processes:
            grader = GraderProcess(self.settings)
            self._graders.append(grader)
            if not grader.begin(work):
                self._bury(grader, work)

    def _collect(self, work: Work) -> None:
        """Wait for answers and deadlines, whichever comes first."""
        busy = [grader for grader in self._graders if grader.tasks]
        if not busy:
            return
        patience = max(0.0, min(grader.deadline for grader in busy) - time.monotonic())
        poll = select.poll()
        by_fd = {grader.channel.fileno(): grader for grader in busy}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(patience * 1000 + 1)}
        for fd, grader in by_fd.items():
            if fd in ready:
                if not grader.take_answers(work):
                    self._bury(grader, work)
            elif time.monotonic() >= grader.deadline:
                self._bury(grader, work, overdue=True)

    def _bury(self, grader: GraderProcess, work: Work, *, overdue: bool = False) -> None:
        """Kill a grader; suspect the call that it was at, and hand the others back."""
        self._graders.remove(grader)
        (exit_code,) = end_all([grader])
        ended = Graded(fault="crash", message=f"the grading process ended with {describe_exit(exit_code)}")
        verdict = grader.overdue(work, next(iter(grader.started), None)) if overdue else ended
        work.hand_back(grader.tasks, grader.started, verdict)


def _close_all(graders: list[GraderProcess]) -> None:
    ending = list(graders)
    graders.clear()
    if ending:
        end_all(ending)
