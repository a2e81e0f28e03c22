"""What a job leaves changed in its process, so that another process can be given to the jobs after it."""

from __future__ import annotations

import builtins
import locale
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from importlib import import_module
from operator import itemgetter
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# That of `signal` makes an enum of each, which takes longer than all the rest.
_get_handler = import_module("_signal").getsignal
# Each is a call of the system. Those of signals, queues and priorities are left out: no job rests on them.
_LIMIT_NAMES = ("AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "NPROC", "STACK")
_LIMITS = [limit for name in _LIMIT_NAMES if (limit := getattr(resource, f"RLIMIT_{name}", None)) is not None]
_BUILTINS = itemgetter(*(name for name in vars(builtins) if name != "_"))  # that is what a prompt has shown last
_AS_TORCH_STARTS = (True, False, "torch.float32", "cpu")


class ProcessState:
    """What code of later jobs relies on in this process, as it is now.

    Only what is quick to look at, and where a difference is no library's doing: importing one may add variables
    to the environment, folders to the search path, and threads that end with the process.
    """

    def __init__(self) -> None:
        self._found = _look_at_all()

    def changed(self) -> str:
        """What is different by now, in words; "" for nothing."""
        now = _look_at_all()
        with suppress(BaseException):  # something of the job's own is in a place, and cannot be compared
            if now == self._found:
                return ""
        differences = (_difference(name, before, now[name]) for name, before in self._found.items())
        return ", ".join(filter(None, differences))


def _look_at_all() -> dict[str, object]:
    try:
        return {name: look() for name, look in _LOOKS.items()}
    except BaseException:
        return {name: _look(look) for name, look in _LOOKS.items()}


def _look(look: Callable[[], object]) -> object:
    try:
        return look()
    except BaseException as error:  # a folder that is gone, a descriptor that is closed, an attribute of the job's
        return type(error)


def _difference(name: str, before: object, now: object) -> str:
    try:
        if before == now:
            return ""
        if isinstance(before, dict) and isinstance(now, dict):
            return _gone(name, {one for one in before if before[one] != now.get(one)})  # values may be secrets
        if isinstance(before, frozenset) and isinstance(now, frozenset):
            return _gone(name, before - now)
    except BaseException:  # something of the job's own is in the place
        return name
    return name


def _gone(name: str, gone: Collection[Any]) -> str:
    """What was there must be there still; what has come does not matter."""
    return f"{name} ({', '.join(sorted(map(os.fsdecode, gone)))})" if gone else ""


def _environment() -> object:
    # Beneath the mapping that everyone uses, which would decode every name and value: 30 us, and this is 1.
    return dict(getattr(os.environ, "_data", os.environ))


def _umask() -> int:
    mask = os.umask(0o077)  # the only way to read it is to set it
    os.umask(mask)
    return mask


def _streams() -> object:
    return [(stream, stream.closed) for stream in (sys.stdin, sys.stdout, sys.stderr) if stream is not None]


def _descriptors() -> object:
    # Two are given back after each job, which had its log there, unless it closed what they were kept in.
    return [(found.st_dev, found.st_ino) for found in map(os.fstat, (0, 1, 2))]


def _signals() -> object:
    return list(map(_get_handler, _SIGNALS)), signal.getitimer(signal.ITIMER_REAL)


def _threads() -> object:
    """Those that a job has left running; a daemon is mostly a library's own."""
    started = (thread for thread in threading.enumerate() if not thread.daemon)
    return [thread.ident for thread in started if thread is not threading.main_thread()]


def _torch() -> object:
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_default_device"):
        return _AS_TORCH_STARTS
    inference = torch.is_inference_mode_enabled()
    return torch.is_grad_enabled(), inference, str(torch.get_default_dtype()), str(torch.get_default_device())


_LOOKS: dict[str, Callable[[], object]] = {
    "the working directory": os.getcwd,
    "the umask": _umask,
    "the environment": _environment,
    "the search path of modules": lambda: frozenset(sys.path),
    "built-in functions": lambda: _BUILTINS(vars(builtins)),
    "the standard streams": _streams,
    "descriptors 0 to 2": _descriptors,
    "signal handlers": _signals,
    "limits of the process": lambda: list(map(resource.getrlimit, _LIMITS)),
    "the recursion limit": sys.getrecursionlimit,
    "the locale": lambda: locale.setlocale(locale.LC_ALL),
    "the timeout of sockets": socket.getdefaulttimeout,
    "threads that still run": _threads,
    "defaults of torch": _torch,
}
