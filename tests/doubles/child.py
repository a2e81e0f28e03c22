"""A child that does what its first line says, and echoes the lines after it."""

import json
import os
import signal
import subprocess
import sys

from pipeline.machine import descendants
from pipeline.machine.children import Channel
from pipeline.machine.descendants import begin

HIDDEN = "env -i setsid sleep 3600 >/dev/null 2>&1 & echo $!"
"""A process in a session of its own, without tag and, once the shell has ended, without parent."""


def main() -> None:
    settings = begin()
    if settings.get("moves"):
        os.setpgid(0, os.getpgid(os.getppid()))
    if settings.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = Channel.inherited(settings["fd"])
    started = [int(subprocess.check_output(["sh", "-c", "sleep 3600 >/dev/null 2>&1 & echo $!"]))]
    if settings.get("adopts"):
        descendants.adopt_orphans()
        started.append(int(subprocess.check_output(["sh", "-c", HIDDEN])))
    seen = {
        "pid": os.getpid(), "group": os.getpgrp(), "path": sys.path, "environment": dict(os.environ),
        "settings": settings, "started": started,
        "held": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    }  # fmt: skip
    channel.send(json.dumps(seen).encode())
    for line in channel.lines():
        channel.send(line)


if __name__ == "__main__":
    main()
