"""A worker on a Ray cluster, as the pool sees it: descriptor, messages and an end, whatever lies between.

pool's thread      sends orders, and takes messages when the descriptor tells of some
thread of its own  asks the actor what the worker says, again and again; an error is the end of the worker
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from pipeline.engine.workers.messages import (
    FromWorker,
    RunJob,
    WorkerExited,
    WorkerUnreadable,
    decode_report,
    encode,
)
from pipeline.engine.workers.protocol import Deliver
from pipeline.engine.workers.ray.site import RaySite
from pipeline.errors import WorkerError

_KILL_S = 5.0
"""What the actor is given to end its worker; then it ends itself, by Ray."""

_LOOK_S = 1.0

_lives = count()


def loss_of(error: BaseException) -> tuple[str, bool]:
    """Say how a worker was lost, and whether its node was, so that neither a job nor a device is to blame.

    Args:
        error: What a call to its actor has raised. Told by names and texts, so that nobody has to import Ray.
    """
    text = str(error).strip()
    if getattr(error, "preempted", False) or re.search(
        "node (has )?died|node was terminated",
        f"{type(error).__name__} {text}".lower().replace("nodedied", "node died"),
    ):
        return "its node was lost", True
    if getattr(error, "actor_init_failed", False):
        last = text.splitlines()[-1].strip()  # the exception of the constructor
        return f"its node cannot serve: {last.partition('WorkerError: ')[2] or last}", False
    return f"its actor was lost: {' '.join(text.split())[:300] or type(error).__name__}", False


class RayWorker:
    """A worker process that an actor of a Ray cluster keeps."""

    def __init__(self, index: int, site: RaySite, told: Mapping[str, Any]) -> None:
        """Describe a worker.

        Args:
            index: Number of its place in the pool.
            site: The cluster.
            told: Settings of its host.
        """
        self._index = index
        self._site = site
        self._told = dict(told)
        self._life = next(_lives)
        self._actor: Any = None
        self._up = self._over = self._unwanted = False
        self._reading, self._writing = -1, -1
        self._said: deque[FromWorker] = deque()
        self._pipe = threading.Lock()
        self._words = self._node = ""
        self._kill: threading.Timer | None = None

    @property
    def index(self) -> int:
        """Number of the worker in the pool."""
        return self._index

    def start(self) -> None:
        """Ask for an actor and have it start a process; neither is waited for."""
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        os.set_blocking(self._reading, False)
        if self._site.has_node(self._index):
            self._actor = self._site.actor(self._index, self._told)
        threading.Thread(target=self._follow, name=f"ray worker {self._index}", daemon=True).start()

    # -- its own thread ----------------------------------------------------------------------------------------

    def _follow(self) -> None:
        try:
            if not self._find_node():
                self._tell(WorkerExited(exit_code=None, how="no node has joined for it", elsewhere=True))
                return
            self._node = self._call("begin", wait=True)
            self._up = True
            if self._unwanted:
                self._act("kill")
            while not self._hear(self._call("poll", wait=True)):
                pass
        except Exception as error:  # Ray's own errors have no common class with those of the network below it
            self._site.drop(self._index, self._actor)
            how, elsewhere = loss_of(error)
            if not elsewhere and self._node and (lost := self._site.why_lost(self._node)):
                how, elsewhere = lost, True
            self._words = "".join(f"\n    {line}" for line in str(error).strip().splitlines()[-15:])
            self._tell(WorkerExited(exit_code=None, how=how, elsewhere=elsewhere))

    def _find_node(self) -> bool:
        """Wait for a node where none was there yet; False where nobody wants one any more."""
        while self._actor is None and not self._unwanted:
            if self._site.has_node(self._index, _LOOK_S):
                self._actor = self._site.actor(self._index, self._told)
        if self._unwanted and not self._up and self._actor is not None:
            self._site.drop(self._index, self._actor)
        return self._actor is not None

    def _hear(self, heard: Mapping[str, Any]) -> bool:
        """Take what the host has answered; whether the worker is over."""
        said: list[FromWorker] = []
        try:
            said += map(decode_report, heard.get("lines", ()))
        except WorkerError as error:
            self._act("kill")
            said.append(WorkerUnreadable(reason=str(error)))
        if heard.get("unreadable"):
            said.append(WorkerUnreadable(reason=heard["unreadable"]))
        if ended := bool(heard.get("ended")):
            self._words = heard.get("last_words", "")
            said.append(WorkerExited(exit_code=heard.get("exit_code")))
        self._tell(*said)
        return ended

    def _tell(self, *messages: FromWorker) -> None:
        with self._pipe:
            self._said.extend(messages)
            if messages and not self._over:
                with suppress(BlockingIOError):  # full: then it is readable already
                    os.write(self._writing, b".")

    # -- the pool's thread -------------------------------------------------------------------------------------

    def send(self, *jobs: RunJob) -> None:
        """Send jobs in one call; that they are lost shows where answers are waited for."""
        self._call("send", [encode(job) for job in jobs])

    def take_back(self) -> None:
        """Send `TakeBack`."""
        self._act("take_back")

    def sources(self) -> Sequence[int]:
        """What tells that something has arrived."""
        return [] if self._reading < 0 else [self._reading]

    def pending(self) -> bool:
        """Never: everything is told by a descriptor."""
        return False

    def receive(self, deliver: Deliver) -> None:
        """Deliver what has arrived."""
        with suppress(BlockingIOError):
            os.read(self._reading, 1 << 12)
        while self._said and not self._over:
            message = self._said.popleft()
            if isinstance(message, WorkerExited):
                self._end()
            deliver(message)

    def _end(self) -> None:
        if self._kill is not None:
            self._kill.cancel()
        with self._pipe:
            self._over = True
            os.close(self._reading)
            os.close(self._writing)
            self._reading = self._writing = -1

    def show_stacks(self) -> None:
        """As a process here would be asked."""
        self._act("show_stacks")

    def ask_to_stop(self) -> None:
        """Send `Shutdown`; where no node has room for it yet there is nothing to wait for."""
        if self._up:
            self._act("ask_to_stop")
        else:
            self.kill()

    def terminate(self) -> None:
        """SIGTERM to the process and its group."""
        self._act("terminate")

    def kill(self) -> None:
        """SIGKILL to the process and its group; if that is not answered, the actor with all that it has."""
        self._unwanted = True
        if not self._up:
            self._give_up()
        else:
            self._act("kill")
            if self._kill is None:
                self._kill = threading.Timer(_KILL_S, self._give_up)
                self._kill.daemon = True
                self._kill.start()

    def _give_up(self) -> None:
        if self._actor is not None:
            self._site.drop(self._index, self._actor)
        if how := self._site.lost:  # then no call is answered any more, and perhaps none fails
            self._tell(WorkerExited(exit_code=None, how=how, elsewhere=True))

    def interrupt(self) -> None:
        """Nothing to do: jobs run elsewhere."""

    def last_words(self) -> str:
        """The end of the worker's own log, or what Ray says of its actor."""
        return self._words

    # -- calls -------------------------------------------------------------------------------------------------

    def _act(self, action: str) -> None:
        self._call("act", action)

    def _call(self, method: str, *words: Any, wait: bool = False) -> Any:
        ask = getattr(self._actor, method).remote
        if wait:
            return self._site.ray.get(ask(self._life, *words))
        with suppress(Exception):  # as above: whoever waits for answers tells
            ask(self._life, *words)
        return None
