"""The doctor: what may be wrong with a machine, found before it costs a run (``python test_parallel_setup.py``).

Each check says what it saw, how bad that is, and what to do. Those of the machine are in `machine.py`; here are
those of the installation, and proofs by the real engine.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from pipeline import arithmetic
from pipeline.commands.machine import WORKER_MEMORY_GIB, TorchFacts, machine_checks, read_facts
from pipeline.commands.start import refuse, unless_unwritten
from pipeline.config.load import config_from_plain, load_config
from pipeline.config.place import conf_dir, install_command
from pipeline.config.plain import to_plain
from pipeline.config.schema import DeviceChoice
from pipeline.engine.devices.inventory import Device, cpu_slots, usable_cores
from pipeline.engine.devices.select import choose_devices
from pipeline.engine.run_jobs import run_jobs
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.store.store import Store
from pipeline.errors import ConfigError, PipelineError
from pipeline.machine.memory import memory_available_bytes
from pipeline.plan.graph import Job, Plan
from pipeline.slurm.lint import slurm_checks
from pipeline.terminal.console import Check, Verdict, failed, make_console, passed, say, warned
from pipeline.terminal.streams import printable

__all__ = ["Check", "Verdict", "main", "run_checks", "script"]

MINIMUM_PYTHON = (3, 11)
_INDENT = " " * len("PASS  ")
DOCUMENTED = "88aef758bcc24248"
MADE_WITH = {"numpy": "2.4.6", "torch": "2.13.0", "transformers": "5.23.0"}
"""What the fingerprint is of; docs/arithmetic.md says the same."""
_ARITHMETIC, _GENERATION = "arithmetic", "parallel generation"
FINGERPRINT = Job(
    id="fingerprint",
    key="f" * 40,
    entry="pipeline.learning.algos.stage_entry:fingerprint_job",
    payload={},
    samples=1,
)


def run_checks(output_dir: Path) -> Iterator[Check]:
    """Every check in order; one that raises has failed, and the others go on."""

    def of_facts() -> Iterator[Check]:
        facts = read_facts()
        yield check_imports(facts.torch)
        yield from machine_checks(facts)
        yield from slurm_checks(facts.environment, visible=len(facts.machine.devices))

    several: dict[str, Callable[[], Iterable[Check]]] = {
        "python": lambda: [check_python()],
        "machine": of_facts,
        "devices": lambda: [check_devices()],
        "config": lambda: [check_config()],
        "store": lambda: [check_store(output_dir)],
        _GENERATION: check_generation,
        _ARITHMETIC: check_arithmetic,
    }
    for name, check in several.items():
        try:
            yield from check()
        except Exception as error:
            yield failed(name, f"{type(error).__name__}: {error}", "the message above says what to repair")


def main(output_dir: Path = Path("outputs")) -> int:
    """Check this machine; 1 if anything failed, or what was found could not be written."""
    return unless_unwritten(print_checks(run_checks(output_dir), "This machine is ready."))


def script(arguments: Sequence[str]) -> int:
    """``python test_parallel_setup.py``: 2 if it was given arguments, of which it takes none."""
    if not arguments:
        return main()
    more = "`python -m pipeline check` makes the same checks, and says by --help what it can be told"
    return refuse(ConfigError(f"test_parallel_setup.py {' '.join(arguments)}: it takes no arguments. {more}"))


def print_checks(checks: Iterable[Check], ready: str) -> int:
    """Print every check as it ends; 1 if any failed.

    Args:
        checks: What to print.
        ready: What to say in the end if none failed.
    """
    console = make_console()
    counts = dict.fromkeys(Verdict, 0)
    for check in checks:
        counts[check.verdict] += 1
        for line in check_lines(check, console):
            console.print(line, soft_wrap=True)
        if check.remedy:  # in one piece, since it often holds a command to be copied
            say(console, f"{_INDENT}try: {check.remedy}")
    wrong = counts[Verdict.FAIL]
    verdict = ready if not wrong else "Repair what failed, then run this again."
    say(console, f"\n{counts[Verdict.PASS]} passed, {counts[Verdict.WARN]} warned, {wrong} failed. {verdict}")
    return 1 if wrong else 0


def check_lines(check: Check, console: Console) -> Iterator[Text]:
    """What was seen; on a terminal broken between words, and indented."""
    name = (check.verdict.name, check.verdict.value)
    text = Text.assemble(name, "  ", (printable(check.name), "bold"), ": ", printable(check.detail))
    if not console.is_terminal:
        yield text
        return
    for number, line in enumerate(text.wrap(console, max(1, console.width - len(_INDENT)))):
        line.rstrip()
        yield Text(_INDENT if number else "") + line


# -- the installation --------------------------------------------------------------------------------------------


def check_python() -> Check:
    """The interpreter and the operating system are ones that workers run on."""
    seen = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < MINIMUM_PYTHON:
        return failed("python", seen, "install Python 3.11 or newer and make the environment with it")
    if not sys.platform.startswith("linux"):
        return warned("python", seen, "only Linux is tested; use it for long runs")
    return passed("python", seen)


def check_imports(torch: TorchFacts) -> Check:
    """A fresh process can import what a worker imports."""
    if torch.failure:
        return failed("imports", torch.failure, f"run `{install_command()}` again")
    return passed("imports", f"torch {torch.version}, transformers {torch.transformers}")


def check_devices() -> Check:
    """GPUs as the driver lists them, or CPU slots where there are none."""
    devices = choose_devices(DeviceChoice.auto, None)
    if devices[0].kind == "cpu":
        memory = memory_available_bytes() / 2**30
        seen = (
            f"no GPU; {usable_cores()} usable cores, {memory:.1f} GiB of memory free: {len(devices)} CPU workers"
        )
        if memory < WORKER_MEMORY_GIB:
            return warned("devices", seen, f"free some memory: a worker takes {WORKER_MEMORY_GIB} GiB")
        return passed("devices", seen)
    names = ", ".join(f"{gpu.index}: {gpu.name} ({gpu.memory_total_bytes / 2**30:.0f} GiB)" for gpu in devices)
    return passed("devices", f"{len(devices)} GPUs: {names}")


def check_config() -> Check:
    """The configuration reaches a worker as plain data and is rebuilt there unchanged, whatever is chosen."""
    several = {
        group: [path.stem for path in (conf_dir() / group).glob("*.yaml")]
        for group in ("algos", "dataset", "model")
    }
    chosen = [f"{group}=[{','.join(sorted(names))}]" for group, names in several.items()]
    config = load_config(["experiment.name=check", *chosen])
    if config_from_plain(json.loads(json.dumps(to_plain(config)))) != config:
        return failed("config", f"{' '.join(chosen)} changes on the way", "look at the files of conf/")
    return passed("config", f"{sum(map(len, several.values()))} group options survive the way to a worker")


def check_store(output_dir: Path) -> Check:
    """Outputs can be written and renamed."""
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output_dir) as folder:
            store = Store(Path(folder))
            key = "0" * 40
            unfinished = store.begin(store.scratch("check"), key, 1)
            (unfinished / "file").write_text("x")
            store.commit(key, unfinished, {})
            if not store.has(key):
                return failed("store", "a written file reads back changed", "use another disk")
    except (OSError, PipelineError) as error:
        return failed("store", str(error), "set output_dir to a folder that you can write to")
    return passed("store", f"{output_dir} is writable")


# -- proofs ------------------------------------------------------------------------------------------------------


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
        reason = f"no fingerprint: {outcome.reason(FINGERPRINT.id)}"
        return failed(_ARITHMETIC, reason, "the reason says what to repair")
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
        return passed(_ARITHMETIC, f"fingerprint {found}, the same as documented")
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
    return warned(_ARITHMETIC, f"{detail} ({why})", remedy)


def check_generation(workers: int | None = None, *, prompts: int = 16, new_tokens: int = 32) -> Iterator[Check]:
    """Every worker generates the same text on a device of its own, through the real engine.

    On CPUs one of them, which has all imported by then, computes the fingerprint of arithmetic as well.
    """
    devices = choose_devices(DeviceChoice.auto, workers)
    jobs = [
        Job(
            id=f"probe/{index}",
            key=f"{index:040d}",
            entry="pipeline.learning.generation.probe:probe",
            payload={"prompts": prompts, "new_tokens": new_tokens, "seed": 0},
            samples=prompts,
        )
        for index in range(len(devices))
    ]
    on_cpu = devices[0].kind == "cpu"
    afterwards = [replace(FINGERPRINT, inputs={"after": tuple(job.key for job in jobs)})] if on_cpu else []
    plan = Plan([*jobs, *afterwards], [(job.id, last.id) for last in afterwards for job in jobs])
    with tempfile.TemporaryDirectory(prefix="pipeline-check-") as folder:
        store = Store(Path(folder) / "store")
        outcome = run_jobs(plan, store, devices, Path(folder), portable=on_cpu)
        lost = [job.id for job in jobs if not store.has(job.key)]
        if lost and outcome.interrupted:
            yield failed(_GENERATION, f"{outcome.interrupted} came before it was done", "run this again")
            return
        if lost:
            detail = f"{len(lost)} of {len(jobs)} workers failed: {outcome.reason(lost[0])}"
            yield failed(_GENERATION, detail, "the reason above says what to repair")
            return
        reports = [json.loads((store.path(job.key) / "probe.json").read_bytes()) for job in jobs]
        judged = [judge(store, outcome)] if on_cpu else []
    yield _which_device(devices, reports)
    yield _same_text(reports)
    used = ", ".join(f"{report['memory_bytes'] / 2**30:.2f} GiB" for report in reports)
    yield passed("memory in use", f"peak per worker: {used}")
    yield from judged


def _which_device(devices: list[Device], reports: list[dict[str, Any]]) -> Check:
    seen = "; ".join(f"pid {report['pid']} on {_place(report)}" for report in reports)
    pids = {report["pid"] for report in reports}
    if len(pids) != len(reports) or os.getpid() in pids:
        return failed(
            _GENERATION, seen, "jobs shared a process; look for a wrapper that changes how python starts"
        )
    if devices[0].kind == "cuda":
        if {report["visible"] for report in reports} != {device.uuid for device in devices}:
            remedy = "two workers saw one GPU; look for a wrapper that sets CUDA_VISIBLE_DEVICES"
            return failed(_GENERATION, seen, remedy)
        if any(report["visible_gpus"] != 1 for report in reports):
            remedy = "torch does not see the GPU; compare `nvidia-smi` with torch.version.cuda"
            return failed(_GENERATION, seen, remedy)
    return passed(_GENERATION, seen)


def _place(report: dict[str, Any]) -> str:
    if report["device"] == "cpu":
        return f"cpu, {report['threads']} thread" + ("s" if report["threads"] != 1 else "")
    return f"{report['visible']} ({report['device']})"


def _same_text(reports: list[dict[str, Any]]) -> Check:
    tokens = sum(report["tokens"] for report in reports)
    if len({report["text"] for report in reports}) > 1:
        seen = "workers generated different text from the same seed"
        return warned("same results", seen, "mixed GPU models round differently: keep a run on one kind")
    return passed("same results", f"{tokens:,} tokens, the same text from every worker")
