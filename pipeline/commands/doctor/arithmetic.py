"""Whether portable arithmetic gives here what it gives elsewhere: a fixed small training, in a worker."""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from pipeline import arithmetic
from pipeline.config.schema import DeviceChoice
from pipeline.engine.devices.inventory import cpu_slots
from pipeline.engine.devices.select import choose_devices
from pipeline.engine.run_jobs import run_jobs
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.store.store import Store
from pipeline.plan.graph import Plan
from pipeline.plan.job import Job
from pipeline.terminal.check import Check, failed, passed, warned

DOCUMENTED = "88aef758bcc24248"
MADE_WITH = {"numpy": "2.4.6", "torch": "2.13.0", "transformers": "5.23.0"}
"""What the fingerprint is of; docs/arithmetic.md says the same."""
_NAME = "arithmetic"
FINGERPRINT = Job(
    id="fingerprint", key="f" * 40, entry="pipeline.learning.training.fingerprint:job", payload={}, samples=1
)


def check_arithmetic() -> Iterator[Check]:
    """Train and decode in a worker with portable arithmetic, and compare with the docs.

    Where there is no GPU a worker that has proven parallel generation has done that, too.
    """
    if choose_devices(DeviceChoice.auto, None)[0].kind == "cpu":
        return
    with tempfile.TemporaryDirectory(prefix="pipeline-check-") as folder:
        store = Store(Path(folder) / "store")
        outcome = run_jobs(Plan([FINGERPRINT], []), store, cpu_slots(1), Path(folder), portable=True)
        yield judge(store, outcome)


def judge(store: Store, outcome: Outcome) -> Check:
    """Compare the fingerprint that a run has left with the docs."""
    if not store.has(FINGERPRINT.key):
        return failed(_NAME, f"no fingerprint: {outcome.reason(FINGERPRINT.id)}", "the reason says what to repair")
    found = json.loads((store.path(FINGERPRINT.key) / "fingerprint.json").read_bytes())["fingerprint"]
    return compare(found, {name: version(name).partition("+")[0] for name in MADE_WITH}, platform.machine())


def compare(found: str, versions: Mapping[str, str], machine: str) -> Check:
    """Judge a fingerprint.

    Args:
        found: Of this machine.
        versions: Of the packages in `MADE_WITH`.
        machine: As `platform.machine` names it.
    """
    if found == DOCUMENTED:
        return passed(_NAME, f"fingerprint {found}, the same as documented")
    others = [
        f"{name} {versions[name]} (there {used})" for name, used in MADE_WITH.items() if versions[name] != used
    ]
    if others:
        why, remedy = f"other versions: {', '.join(others)}", "install with `-c constraints.txt` for the same"
    elif not arithmetic.covers(machine):
        why, remedy = f"{machine} is no x86-64 processor", "compare with runs on such machines only"
    else:
        why = f"for a reason that is not known, on {arithmetic.processor()}"
        remedy = "compare with runs on such processors only, and please report it"
    detail = f"fingerprint {found} differs from {DOCUMENTED}: results here are not byte for byte those of the docs"
    return warned(_NAME, f"{detail} ({why})", remedy)
