"""What a process sees of the machine that it runs on."""

from __future__ import annotations

import psutil


def listening(*pids: int) -> list[str]:
    """The addresses at which processes, by default this one, listen for others; without ports, sorted."""
    found = set()
    for pid in pids or (None,):
        for connection in psutil.Process(pid).net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN:
                found.add(connection.laddr.ip)
    return sorted(found)
