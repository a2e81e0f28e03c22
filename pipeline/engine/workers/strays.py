"""What a job has left running when it ended, and nothing in its worker holds on to any longer.

A worker runs many jobs and keeps processes between them: those that grade, compile workers of torch, services of
libraries. Such a process is a child of the worker, which has an object for it. Whatever has lost its parent (a
daemon, what a shell has put into the background), or whose `Popen` is gone, serves nobody: it ends with the job.
The same goes for who runs trials, and for what these leave.
"""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from pipeline.machine import descendants
from pipeline.machine.descendants import Process

_ROUNDS = 5
_holders: dict[tuple[int, int], weakref.ref[Any]] = {}
"""Child, as its number and when it began -> the object that was found to stand for it."""


def end_strays() -> None:
    """End them, with all that they have started. For a process that adopts orphans."""
    for _ in range(_ROUNDS):
        # Looked at twice: another thread may have started one, and not have its object yet.
        if not (strays := _strays()) or not (strays := strays & _strays()):
            return
        descendants.end(partial(_family, strays))


def _family(roots: set[Process]) -> set[Process]:
    living = descendants.alive(roots)
    return living | descendants.below(*(process.pid for process in living))


def _strays() -> set[Process]:
    strays = _without_holder(descendants.children())
    for stray in strays:
        if stray.is_over:
            with suppress(ChildProcessError):
                os.waitpid(stray.pid, os.WNOHANG)  # nobody else will
    return {stray for stray in strays if not stray.is_over}


def _without_holder(children: Collection[Process]) -> set[Process]:
    """Those of some children for which no object of this process stands.

    Where torch is loaded it takes a tenth of a second to look through all objects. So it is remembered which one
    was found to stand for a child, and they are looked through only where none is known that still does.
    """
    for gone in _holders.keys() - {_name(child) for child in children}:
        del _holders[gone]
    unknown = {child for child in children if not _stands(_holders.get(_name(child)), child.pid)}
    if unknown:
        held = {number: weakref.ref(one) for number, one in _held()}
        _holders.update({_name(child): held[child.pid] for child in unknown if child.pid in held})
    return {child for child in unknown if not _stands(_holders.get(_name(child)), child.pid)}


def _name(child: Process) -> tuple[int, int]:
    return child.pid, child.began


def _stands(holder: weakref.ref[Any] | None, number: int) -> bool:
    one = holder and holder()
    return one is not None and _number(one, _kinds()) == number


# -- objects that stand for a process ----------------------------------------------------------------------------


def _of_popen(one: Any) -> int | None:
    # Python itself keeps those which a job has let go of, to ask for their exit code later.
    kept = getattr(sys.modules["subprocess"], "_active", None) or ()
    return None if any(one is other for other in kept) else one.pid


_NUMBERS: dict[tuple[str, str], Callable[[Any], int | None]] = {
    ("subprocess", "Popen"): _of_popen,
    ("multiprocessing.process", "BaseProcess"): lambda one: one._popen and one._popen.pid,
    ("multiprocessing.resource_tracker", "ResourceTracker"): lambda one: one._pid,
    ("multiprocessing.forkserver", "ForkServer"): lambda one: one._forkserver_pid,
}


def _kinds() -> dict[type, Callable[[Any], int | None]]:
    """The classes whose objects stand for a process. One that no code has imported has no objects."""
    found = {getattr(sys.modules.get(module), name, None): ask for (module, name), ask in _NUMBERS.items()}
    return {kind: ask for kind, ask in found.items() if isinstance(kind, type)}


def _held() -> Iterator[tuple[int, Any]]:
    """Numbers of processes, each with an object of this one that stands for it."""
    kinds = _kinds()
    whichever = tuple(kinds)
    for one in gc.get_objects():
        if issubclass(type(one), whichever) and (number := _number(one, kinds)) is not None:
            yield number, one


def _number(one: Any, kinds: dict[type, Callable[[Any], int | None]]) -> int | None:
    # Not `isinstance`, which asks an object that stands for another one what that is.
    return next((ask(one) for kind, ask in kinds.items() if issubclass(type(one), kind)), None)
