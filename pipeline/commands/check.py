"""Find what may be wrong with a machine before it costs a run (``python test_parallel_setup.py``).

Each check says what it saw, how bad that is, and what to do: of the installation, of the machine, and by proofs of
the real engine.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.text import Text

from pipeline import arithmetic
from pipeline.commands.start import refuse, unless_unwritten
from pipeline.config.schema import DeviceChoice
from pipeline.engine.devices import inventory
from pipeline.engine.devices.select import devices_of, holders
from pipeline.engine.run_jobs import run_jobs
from pipeline.engine.scheduler.outcome import Outcome
from pipeline.engine.store.store import Store
from pipeline.errors import ConfigError, DeviceError, PipelineError, install_command
from pipeline.machine.memory import memory_available_bytes
from pipeline.plan.graph import Job, Plan
from pipeline.slurm.lint import slurm_checks
from pipeline.terminal.console import Check, Verdict, failed, make_console, passed, say, say_styled, warned

GPU_IN_USE = 0.1
SHM_GIB = 1
WORKER_MEMORY_GIB = 0.7
_SHM = Path("/dev/shm")  # noqa: S108 - looked at alone
_INDENT = " " * len("PASS  ")
DOCUMENTED = "88aef758bcc24248"
MADE_WITH = {"numpy": "2.4.6", "torch": "2.13.0", "transformers": "5.23.0"}
"""Versions behind the fingerprint `DOCUMENTED`, as in docs/arithmetic.md."""
_ARITHMETIC, _GENERATION = "arithmetic", "parallel generation"
_ENTRY = "pipeline.learning.algos.machine_check"
FINGERPRINT = Job(id="fingerprint", key="f" * 40, entry=f"{_ENTRY}:fingerprint_job", payload={}, samples=1)
_TORCH_TIMEOUT_S = 300
_ASK_TORCH = """
import gc, json, warnings
gc.disable()  # nothing that is imported is garbage, and looking for some takes a fifth of the time
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    import torch, transformers, pipeline.learning.algos.stage_entry
    count = torch.cuda.device_count()
    available = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda, "available": available, "count": count,
    "error": "; ".join(str(one.message) for one in said if "CUDA" in str(one.message)),
    "transformers": transformers.__version__,
}))
gc.freeze()  # nor does it end sooner for going through all of it
"""


def run_checks(output_dir: Path) -> Iterator[Check]:
    """Run every check in order; one that raises counts as failed, and the others go on."""
    several: dict[str, Callable[[], Iterable[Check]]] = {
        "machine": lambda: machine_checks(ask_torch()),
        "devices": check_devices,
        "store": lambda: check_store(output_dir),
        _GENERATION: check_generation,
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
    """Run ``python test_parallel_setup.py``; return 2 if it was given arguments, as it takes none."""
    if not arguments:
        return main()
    return refuse(ConfigError(f"test_parallel_setup.py {' '.join(arguments)}: it takes no arguments"))


def print_checks(checks: Iterable[Check], ready: str) -> int:
    """Print every check as it ends; 1 if any failed.

    Args:
        checks: Checks to print.
        ready: Last line if none failed.
    """
    console = make_console()
    counts = dict.fromkeys(Verdict, 0)
    for check in checks:
        counts[check.verdict] += 1
        name = (check.verdict.name, check.verdict.value)
        say_styled(console, Text.assemble(name, "  ", (check.name, "bold"), ": ", check.detail))
        if check.remedy:  # in one piece, since it often holds a command to be copied
            say(console, f"{_INDENT}try: {check.remedy}")
    wrong = counts[Verdict.FAIL]
    verdict = ready if not wrong else "Repair what failed, then run this again."
    say(console, f"\n{counts[Verdict.PASS]} passed, {counts[Verdict.WARN]} warned, {wrong} failed. {verdict}")
    return 1 if wrong else 0


# -- the installation --------------------------------------------------------------------------------------------


def check_devices() -> Iterator[Check]:
    """GPUs as the driver lists them, or CPU slots where there are none."""
    devices = devices_of(DeviceChoice.auto, None).best()
    if devices[0].kind == "cpu":
        yield passed("devices", f"no GPU; {inventory.usable_cores()} usable cores: {len(devices)} CPU workers")
    else:
        names = (f"{gpu.index}: {gpu.name} ({gpu.memory_total_bytes / 2**30:.0f} GiB)" for gpu in devices)
        yield passed("devices", f"{len(devices)} GPUs: {', '.join(names)}")


def check_store(output_dir: Path) -> Iterator[Check]:
    """Check that outputs can be written and renamed."""
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output_dir) as folder:
            store, key = Store(Path(folder)), "0" * 40
            unfinished = store.begin(store.scratch("check"), key, 1)
            (unfinished / "file").write_text("x")
            store.commit(key, unfinished, {})
            if store.has(key):
                yield passed("store", f"{output_dir} is writable")
            else:
                yield failed("store", "a written file reads back changed", "use another disk")
    except (OSError, PipelineError) as error:
        yield failed("store", str(error), "set output_dir to a folder that you can write to")


# -- the machine -------------------------------------------------------------------------------------------------


def ask_torch() -> dict[str, Any]:
    """Ask torch in a fresh process, which may open CUDA contexts and ends with them.

    Returns:
        What `_ASK_TORCH` prints; or `failure`, why it could not be asked.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK_TORCH],
            capture_output=True,
            text=True,
            check=False,
            timeout=_TORCH_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return {"failure": f"importing torch took longer than {_TORCH_TIMEOUT_S} s"}
    if done.returncode:
        return {"failure": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def machine_checks(torch: Mapping[str, Any]) -> Iterator[Check]:
    """Check what the system reports, beside the answers from `ask_torch`."""
    if "failure" in torch:
        yield failed("imports", torch["failure"], f"run `{install_command()}` again")
    else:
        yield passed("imports", f"torch {torch['version']}, transformers {torch['transformers']}")
    machine = inventory.Machine()
    try:
        machine = inventory.read_machine()
        with inventory.session() as nvml:
            number = int(nvml.nvmlSystemGetCudaDriverVersion())
            driver = f"{nvml.nvmlSystemGetDriverVersion()} (CUDA up to {number // 1000}.{number % 1000 // 10})"
        yield from _gpu_checks(machine, driver, torch)
    except inventory.NoDriver:
        nodes = ", ".join(map(str, sorted(Path("/dev").glob("nvidia[0-9]*"))))
        lost = f"{nodes} are there, but the driver's library libnvidia-ml.so.1 is not"
        remedy = "start the container with --gpus all, or NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        none = "no NVIDIA driver, or no GPU was passed into this container: runs use CPU slots"
        yield failed("driver", lost, remedy) if nodes else passed("driver", none)
    except DeviceError as error:
        yield failed("driver", str(error), "reboot if it was updated; until then use device=cpu")
    yield from limits(_cgroup(), inventory.usable_cores(), memory_available_bytes())
    if _SHM.is_dir():
        size, name = shutil.disk_usage(_SHM).total / 2**30, str(_SHM)
        lack = f"{size:.2f} GiB: data loaders with num_workers > 0 die with a bus error, and NCCL cannot start"
        remedy = "start the container with --shm-size=8g or --ipc=host; else num_workers: 0 and NCCL_SHM_DISABLE=1"
        yield passed(name, f"{size:.2f} GiB") if size >= SHM_GIB else warned(name, lack, remedy)
    yield from slurm_checks(os.environ)


def _gpu_checks(machine: inventory.Machine, driver: str, torch: Mapping[str, Any]) -> Iterator[Check]:
    """Check that the driver answers for every GPU, that the mask is valid, and that torch sees the same GPUs."""
    if machine.broken:
        places = {uuid: index for index, uuid in enumerate(machine.uuids)}
        seen = "; ".join(f"GPU {places[uuid]}: {why}" for uuid, why in machine.broken.items())
        remedy = "see `dmesg | grep -i xid`, then have it reset or reboot; runs leave it out"
        yield warned("driver", seen, remedy)
    else:
        yield passed("driver", f"NVIDIA {driver}; {len(machine.uuids)} GPUs")
    mask = os.environ.get(inventory.VISIBLE)
    if not machine.uuids:
        return
    if mask is not None and mask.strip() in inventory.NOTHING:
        seen = f"{inventory.VISIBLE}={mask} hides all {len(machine.uuids)} GPUs"
        yield warned(inventory.VISIBLE, seen, f"`unset {inventory.VISIBLE}`, unless you mean the CPU")
        return
    try:
        visible = inventory.visible_gpus(machine, os.environ)
    except DeviceError as error:
        remedy = f"give numbers from 0 to {len(machine.uuids) - 1}, each once, with commas between"
        yield failed(inventory.VISIBLE, str(error), remedy)
        return
    yield passed(inventory.VISIBLE, f"{mask or 'not set'}: {', '.join(gpu.label for gpu in visible)}")
    if "failure" not in torch:
        yield _torch_sees(visible, driver, torch)
    yield _gpu_memory(machine, visible)


def _torch_sees(visible: Sequence[inventory.Device], driver: str, torch: Mapping[str, Any]) -> Check:
    seen, remedy = f"torch {torch['version']} for CUDA {torch['cuda']} sees {torch['count']} GPUs", ""
    if torch["cuda"] is None:
        seen = f"torch {torch['version']} was built without CUDA, but there are {len(visible)} GPUs"
        remedy = "install the CUDA build, see https://pytorch.org/get-started"
    elif not torch["available"]:
        seen += f" and cannot use them; driver: {driver} {' '.join(torch['error'].split())}"
        remedy = "update the driver or install a torch for an older CUDA, if that is newer; else see `nvidia-smi`"
    elif torch["count"] != len(visible) and all(gpu.slice_index is None for gpu in visible):
        seen += f", NVML {len(visible)}"
        remedy = "a cgroup or container hides some: compare `nvidia-smi -L` inside and outside of it"
    return failed("torch and driver", seen, remedy) if remedy else passed("torch and driver", seen)


def _gpu_memory(machine: inventory.Machine, visible: Sequence[inventory.Device]) -> Check:
    """Warn of programs other than runs that hold much of the GPUs of a run."""
    holder_of, seen, busy, pids = holders(list(visible)), list[str](), list[inventory.Device](), set[int]()
    for gpu in visible:
        use, holder = machine.usage[gpu.uuid or ""], holder_of.get(gpu.uuid or "")
        share = use.used_bytes / use.total_bytes
        seen.append(f"{gpu.label}: {share:.0%} in use" + (f", held by {holder}" if holder else ""))
        if share > GPU_IN_USE and not holder:
            busy.append(gpu)
            pids |= {process.pid for process in use.processes or ()}
    if not busy:
        return passed("GPU memory", "; ".join(seen) or "no GPU")
    free = ",".join(str(index) for index, gpu in enumerate(visible) if gpu not in busy)
    choose = f"use the others: distributed.gpu_ids=[{free}]" if free else "use device=cpu"
    who = f" by processes {', '.join(map(str, sorted(pids)))}" if pids else ""
    return warned("GPU memory", "; ".join(seen) + who, f"stop what runs there, or {choose}")


def _cgroup() -> Path:
    """Return the folder of this process's cgroup, or the root of the hierarchy inside a container."""
    root = Path("/sys/fs/cgroup")
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::") and (root / line[3:].lstrip("/")).is_dir():
                return root / line[3:].lstrip("/")
    return root


def limits(cgroup: Path, cores: int, available: int) -> Iterator[Check]:
    """Check that shown cores and memory can be used, whatever a cgroup or those above it allow.

    Args:
        cgroup: Folder of the cgroup.
        cores: Cores that this process may run on.
        available: Bytes of memory that the machine has free.
    """
    quotas, memory, worker = [float(cores)], [available], WORKER_MEMORY_GIB * 2**30
    for group in (cgroup, *cgroup.parents):
        with suppress(OSError, ValueError):
            allowed, period = map(int, (group / "cpu.max").read_text().split())
            quotas.append(allowed / period)
        with suppress(OSError, ValueError):
            most, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
            memory.append(max(0, most - used))
    if (quota := min(quotas)) >= cores - 0.5:
        yield passed("CPU limit", f"{cores} usable cores")
    else:
        seen = f"{cores} cores are shown, but the cgroup allows the time of {quota:g}"
        yield warned("CPU limit", seen, f"set execution.workers={max(1, int(quota))} on the CPU")
    usable = min(memory)
    seen = f"{usable / 2**30:.1f} GiB can be taken"
    if usable >= (cores if usable < available else 1) * worker:
        yield passed("memory limit", seen)
    else:
        remedy = f"set execution.workers={max(1, int(usable / worker))} on the CPU, or ask for more (Slurm: --mem)"
        yield warned("memory limit", f"{seen}, for {cores} cores; a worker takes {WORKER_MEMORY_GIB} GiB", remedy)


# -- proofs ------------------------------------------------------------------------------------------------------


def judge(store: Store, outcome: Outcome) -> Check:
    """Compare the fingerprint that a run has left with the docs."""
    if not store.has(FINGERPRINT.key):
        reason = f"no fingerprint: {outcome.reason(FINGERPRINT.id)}"
        return failed(_ARITHMETIC, reason, "the reason says what to repair")
    own = json.loads((store.path(FINGERPRINT.key) / "fingerprint.json").read_bytes())["fingerprint"]
    return compare(own, {name: version(name).partition("+")[0] for name in MADE_WITH})


def compare(own: str, versions: Mapping[str, str]) -> Check:
    """Judge a fingerprint of this machine, made with these versions of the packages in `MADE_WITH`."""
    if own == DOCUMENTED:
        return passed(_ARITHMETIC, f"fingerprint {own}, the same as documented")
    used = ", ".join(f"{name} {versions[name]} (there {made})" for name, made in MADE_WITH.items())
    detail = f"fingerprint {own} differs from {DOCUMENTED}: results here are not byte for byte those of the docs"
    remedy = "install with `-c constraints.txt`; if it still differs on x86-64 with AVX2, please report it"
    return warned(_ARITHMETIC, f"{detail} ({used}, on {arithmetic.processor()})", remedy)


def check_generation(workers: int | None = None) -> Iterator[Check]:
    """Check that every worker generates the same text on a device of its own, through the real engine.

    On CPUs one of them, which has all imported by then, computes the fingerprint of arithmetic as well.
    """
    devices = devices_of(DeviceChoice.auto, workers).best()
    payload = {"prompts": 16, "new_tokens": 32, "seed": 0}
    probe = partial(Job, entry=f"{_ENTRY}:probe", payload=payload, samples=16)
    jobs = [probe(id=f"probe/{index}", key=f"{index:040d}") for index in range(len(devices))]
    on_cpu = devices[0].kind == "cpu"
    last = [replace(FINGERPRINT, inputs={"after": tuple(job.key for job in jobs)})] if on_cpu else []
    plan = Plan([*jobs, *last], [(job.id, after.id) for after in last for job in jobs])
    with tempfile.TemporaryDirectory(prefix="pipeline-check-") as folder:
        store = Store(Path(folder) / "store")
        outcome = run_jobs(plan, store, devices, Path(folder), portable=on_cpu)
        if lost := [job.id for job in jobs if not store.has(job.key)]:
            detail = f"{len(lost)} of {len(jobs)} workers failed: {outcome.reason(lost[0])}"
            if outcome.interrupted:
                detail = f"{outcome.interrupted} came before it was done"
            yield failed(_GENERATION, detail, "run this again, where the reason above does not say what to repair")
            return
        reports = [json.loads((store.path(job.key) / "probe.json").read_bytes()) for job in jobs]
        yield which_device(devices, reports)
        yield same_text(reports)
        used = ", ".join(f"{report['memory_bytes'] / 2**30:.2f} GiB" for report in reports)
        yield passed("memory in use", f"peak per worker: {used}")
        if not on_cpu:
            outcome = run_jobs(Plan([FINGERPRINT], []), store, inventory.cpu_slots(1), Path(folder), portable=True)
        yield judge(store, outcome)


def which_device(devices: Sequence[inventory.Device], reports: Sequence[Mapping[str, Any]]) -> Check:
    """Check whether each worker had a process and a device of its own."""
    seen = "; ".join(f"pid {report['pid']} on {_device_words(report)}" for report in reports)
    pids, remedy = {report["pid"] for report in reports}, ""
    if len(pids) != len(reports) or os.getpid() in pids:
        remedy = "jobs shared a process; look for a wrapper that changes how python starts"
    elif devices[0].kind == "cuda" and {report["visible"] for report in reports} != {gpu.uuid for gpu in devices}:
        remedy = "two workers saw one GPU; look for a wrapper that sets CUDA_VISIBLE_DEVICES"
    elif devices[0].kind == "cuda" and any(report["visible_gpus"] != 1 for report in reports):
        remedy = "torch does not see the GPU; compare `nvidia-smi` with torch.version.cuda"
    return failed(_GENERATION, seen, remedy) if remedy else passed(_GENERATION, seen)


def _device_words(report: Mapping[str, Any]) -> str:
    if report["device"] == "cpu":
        return f"cpu, {report['threads']} thread" + ("s" if report["threads"] != 1 else "")
    return f"{report['visible']} ({report['device']})"


def same_text(reports: Sequence[Mapping[str, Any]]) -> Check:
    """Check whether all workers wrote the same text."""
    if len({report["text"] for report in reports}) > 1:
        seen = "workers generated different text from the same seed"
        return warned("same results", seen, "mixed GPU models round differently: keep a run on one kind")
    tokens = sum(report["tokens"] for report in reports)
    return passed("same results", f"{tokens:,} tokens, the same text from every worker")
