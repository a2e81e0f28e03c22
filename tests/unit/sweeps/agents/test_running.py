"""A program under way, seen from its agent."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.machine import descendants
from pipeline.machine.children import Child
from pipeline.sweeps.agents import handle
from pipeline.sweeps.agents.running import Curve, Program
from pipeline.sweeps.agents.trial_process import Order
from pipeline.sweeps.folder import TrialFolder
from tests.doubles import child as double


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is found")
def test_what_hides_ends_with_the_attempt_though_its_process_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon without environment, by now a child of the agent, must not run beside the next attempt."""

    def child(_: str, environment: dict[str, str], __: object, **options: Any) -> Child:
        return Child(double.__name__, environment, {"adopts": True}, **options)

    monkeypatch.setattr(handle, "Child", child)
    descendants.adopt_orphans()
    order = Order(words=[], log="", start="")
    program = Program([], Curve(TrialFolder(tmp_path), 1, None), order, descendants.new_tag())
    seen = json.loads(next(program._child.channel.lines()))
    os.kill(seen["pid"], signal.SIGKILL)
    program.close()
    assert not [pid for pid in seen["started"] if psutil.pid_exists(pid)]
