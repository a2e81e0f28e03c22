"""Job bodies that behave and misbehave, for workers to import by path. Each is an entry: ``body(work)``."""

import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from pipeline.engine.workers.work import Work
from pipeline.errors import JobStopped
from tests.doubles.native import hold_the_interpreter

ENVIRONMENT_AT_IMPORT = dict(os.environ)


def nothing(work: Work) -> None:
    """Write nothing; the output is a manifest alone."""


def write_on_in_the_background(work: Work) -> None:
    """Return while what a shell has put into the background writes to the output."""
    subprocess.run("(while :; do echo x >> t.txt; done) &", shell=True, cwd=work.out, check=True)
    while not (work.out / "t.txt").exists():
        time.sleep(0.01)


def write(work: Work) -> None:
    """Write the payload and the payloads of all inputs."""
    found = {
        name: [json.loads((folder / "value.json").read_text()) for folder in folders]
        for name, folders in work.inputs.items()
    }
    (work.out / "value.json").write_text(
        json.dumps({"payload": dict(work.payload), "inputs": found}, sort_keys=True)
    )
    work.progress(1, 1, tokens=3)


def sleep(work: Work) -> None:
    time.sleep(float(work.payload["seconds"]))


def wait_for_file(work: Work) -> None:
    while not Path(work.payload["file"]).exists():
        time.sleep(0.05)
    (work.out / "waited").write_text("for it")


def raise_error(work: Work) -> None:
    raise ValueError(work.payload.get("message", "this body raises"))


def raise_system_exit(work: Work) -> None:
    sys.exit(3)


def exit_at_once(work: Work) -> None:
    os._exit(int(work.payload.get("code", 7)))


def segfault(work: Work) -> None:
    ctypes.string_at(0)


def kill_self(work: Work) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_self_once(work: Work) -> None:
    """Die in the first attempt, succeed in the second."""
    if work.attempt == 1:
        kill_self(work)
    write(work)


def sign_in(work: Work) -> None:
    """Leave a line that says that it ran; one that is to raise or to die does so in its first attempt."""
    with open(work.payload["list"], "a") as file:  # noqa: PTH123 - a line a write, whoever else writes
        file.write(f"{work.job_id} {work.attempt}\n")
    if work.payload.get("raises"):
        raise ValueError("this one raises")
    if work.payload.get("dies") and work.attempt == 1:
        kill_self(work)


def take_gpu_memory(work: Work) -> None:
    """Hold memory of which `fake_nvml` tells; in the first attempts die with it, or end the leader of ranks."""
    from tests.doubles import fake_nvml

    uuid = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[work.rank]
    fake_nvml.take(Path(work.payload["taken"]), uuid, 20.0)
    if work.rank == work.payload.get("rank", 0) and work.attempt <= work.payload.get("deaths", 0):
        while len(list(Path(work.payload["taken"]).glob("*.json"))) < work.world_size:
            time.sleep(0.01)
        os.kill(os.getppid() if work.payload.get("leader") else os.getpid(), signal.SIGKILL)
    write(work)


def stop_self(work: Work) -> None:
    """Stand still: no thread of the process runs on, and nothing but SIGKILL ends it."""
    os.kill(os.getpid(), signal.SIGSTOP)


def ignore_requests_to_stop(work: Work) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pids = [os.getpid(), *escapees(), daemon("env -i setsid sleep 3600")]
    Path(work.payload["flag"]).write_text(json.dumps(pids))
    while True:
        with suppress(KeyboardInterrupt):
            time.sleep(3600)


def unwind_when_stopped(work: Work) -> None:
    """Tell by a file that the body was left by an exception rather than cut off."""
    Path(work.payload["flag"]).write_text(str(os.getpid()))
    try:
        time.sleep(3600)
    finally:
        Path(work.payload["unwound"]).touch()


def hang_up(work: Work) -> None:
    """Close every descriptor, the pipe to the engine included, and live on."""
    os.closerange(3, 256)
    time.sleep(3600)


def write_garbage(work: Work) -> None:
    """Write bytes that are no message to whatever the process has open: one of them is its pipe."""
    for descriptor in range(3, 64):
        with suppress(OSError):
            if str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("socket:"):
                os.write(descriptor, b"\xff\x00 no message\n")
    time.sleep(3600)


def print_everywhere(work: Work) -> None:
    """Write to standard output and error in every way there is."""
    print("by print")
    print("by print to stderr", file=sys.stderr)
    logging.getLogger("some.library").warning("by logging")
    os.write(1, b"by descriptor 1\n")
    os.write(2, b"by descriptor 2\n")
    # No newline: the C library keeps this in its own buffer until someone flushes it.
    ctypes.CDLL(None).printf(b"by printf")
    subprocess.run(["sh", "-c", "echo by a child process"], check=True)


def leave_grandchild(work: Work) -> None:
    """Start processes that would outlive the job, and then sleep."""
    child = subprocess.Popen(["sleep", "3600"])
    Path(work.payload["flag"]).write_text(json.dumps([os.getpid(), child.pid, *escapees()]))
    if work.payload.get("die"):
        kill_self(work)
    time.sleep(float(work.payload.get("seconds", 3600)))


def escapees() -> list[int]:
    """Start processes that have left the group and the session: a child, and a daemon whose parent is gone."""
    child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    return [child.pid, daemon("setsid sleep 3600")]


def daemon(command: str) -> int:
    """Start what a shell puts into the background, and wait for the shell."""
    said = subprocess.check_output(["sh", "-c", f"{command} >/dev/null 2>&1 & echo $!"])
    return int(said)


def report_much(work: Work) -> None:
    for step in range(20_000):
        work.progress(step + 1, 20_000, tokens=2 * (step + 1))


def show_environment(work: Work) -> None:
    """Write what the environment was when this module was imported, and whether torch had been by then."""
    (work.out / "environment.json").write_text(
        json.dumps({"env": ENVIRONMENT_AT_IMPORT, "torch": "torch" in sys.modules, "path": sys.path})
    )


def remember(work: Work) -> None:
    """Count the jobs that this worker has run."""
    work.memory["count"] = work.memory.get("count", 0) + 1
    (work.out / "count.txt").write_text(f"{work.memory['count']} {os.getpid()}")


no_function = "not callable"


def raise_keyboard_interrupt(work: Work) -> None:
    raise KeyboardInterrupt


def loop_in_native_code(work: Work) -> None:
    """Hold the interpreter's lock for ever, so that no other thread of the process runs."""
    hold_the_interpreter()


def loop_without_progress(work: Work) -> None:
    """Alive, with heartbeats, but never any further."""
    work.progress(1, 10)
    while True:
        work.progress(1, 10)
        time.sleep(0.02)


def fail_at_import(work: Work) -> None:
    import tests.doubles.raises_at_import  # noqa: F401


def raise_connection_error(work: Work) -> None:
    raise ConnectionResetError(104, "Connection reset by peer")


def lose_connection_twice(work: Work) -> None:
    if work.attempt < 3:
        raise_connection_error(work)
    write(work)


def raise_out_of_memory(work: Work) -> None:
    raise MemoryError("no room")


def stop_with_checkpoint(work: Work) -> None:
    """Count, one step at a time; save the count and stop when asked to."""
    saved = work.checkpoints / "count"
    count = int(saved.read_text()) if saved.exists() else 0
    flag = Path(work.payload["flag"])
    start = count
    while count < int(work.payload["steps"]):
        count += 1
        work.progress(count, int(work.payload["steps"]))
        if work.stopping():
            work.checkpoints.mkdir(parents=True, exist_ok=True)
            saved.write_text(str(count))
            raise JobStopped(f"at step {count}")
        if count == start + 3:
            flag.write_text("started")
        time.sleep(0.01)
    (work.out / "started_from").write_text(str(start))


def finish_soon(work: Work) -> None:
    """Take a moment longer than the request to stop."""
    Path(work.payload["flag"]).write_text("started")
    time.sleep(0.5)
    write(work)


def spin_until_stopped(work: Work) -> None:
    Path(work.payload["flag"]).write_text(str(os.getpid()))
    while not work.stopping():
        time.sleep(0.01)
    Path(work.payload["flag"] + ".heard").touch()
    while not Path(work.payload["told"]).exists():
        time.sleep(0.01)
    Path(work.payload["flag"] + ".saved").touch()
    raise JobStopped


def fill_the_disk(work: Work) -> None:
    """Write to a disk that is full."""
    (work.out / "value.json").write_text("some of it")
    Path("/dev/full").write_text("the rest")


def damage_own_input(work: Work) -> None:
    """Change a stored output behind the store's back, before another job reads it."""
    write(work)
    victim, flag = Path(work.payload["victim"]) / "value.json", Path(work.payload["flag"])
    if not flag.exists():
        flag.touch()
        data = bytearray(victim.read_bytes())
        data[0] ^= 1
        victim.write_bytes(data)


def write_slowly(work: Work) -> None:
    time.sleep(0.3)
    write(work)


# -- jobs of several devices: every rank runs the same body ------------------------------------------


def rank_facts(work: Work) -> None:
    """What a rank sees; each writes to its own `out`, and only that of rank 0 is kept."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES")
    facts = {name: os.environ[name] for name in names}
    facts |= {"work": [work.rank, work.world_size, work.device], "pid": os.getpid(), "group": os.getpgrp()}
    facts |= {"torch": "torch" in sys.modules, "path": sys.path}
    (work.out / "facts.json").write_text(json.dumps(facts))
    print(f"this is rank {work.rank}")
    meeting = Path(work.payload["meeting"])
    (meeting / str(work.rank)).write_text(json.dumps(facts))
    while len(list(meeting.iterdir())) < work.world_size:  # all of them run at the same time
        time.sleep(0.01)
    work.show({"loss": 0.5 + work.rank, "kl": float("nan")})
    work.progress(1 + work.rank, 4, tokens=10 + work.rank)


def one_rank_fails(work: Work) -> None:
    """One rank runs a body that fails in the first attempts; the others wait for ever."""
    fails = work.attempt <= int(work.payload.get("times", 99)) and work.rank == int(work.payload["rank"])
    print(f"rank {work.rank} was here", flush=True)
    if fails:
        globals()[work.payload["body"]](work)
    elif work.attempt <= int(work.payload.get("times", 99)):
        if flag := work.payload.get("flag"):
            (Path(flag) / f"{work.rank}").write_text(str(os.getpid()))
        if work.payload.get("ignore"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)


def ranks_stop_when_asked(work: Work) -> None:
    """Run until asked to stop; go on from there the next time."""
    saved = work.checkpoints / "stopped"
    if saved.exists():
        write(work)
        return
    Path(work.payload["flag"]).joinpath(str(work.rank)).touch()
    while not work.stopping():
        time.sleep(0.01)
    if work.rank == 0:
        work.checkpoints.mkdir(parents=True, exist_ok=True)
        saved.touch()
    raise JobStopped(f"rank {work.rank}")


# -- jobs that share a device ------------------------------------------------------------------------


def take_memory(work: Work) -> None:
    """Say how much memory it takes, and end when as many jobs as it is to meet have begun."""
    work.peak_mb, work.held_mb = work.payload.get("peak_mb"), work.payload.get("held_mb", 0)
    print(f"shared: {work.shared}, {os.environ['CUDA_VISIBLE_DEVICES']}")
    if meeting := work.payload.get("meeting"):
        Path(meeting).joinpath(work.job_id).touch()
        give_up = time.monotonic() + 200
        while len(list(Path(meeting).iterdir())) < work.payload["meets"]:
            assert time.monotonic() < give_up, "the others did not come"
            time.sleep(0.01)
    write(work)


def run_out_beside_others(work: Work) -> None:
    """Have too little memory unless the device is its own."""
    if work.shared:
        raise MemoryError("no room beside others")
    take_memory(work)


# -- jobs that break the rules between worker and engine ---------------------------------------------


def leave_odd_counts(work: Work) -> None:
    write(work)
    work.tokens = float("nan")  # type: ignore[assignment]


def speak_for_the_worker(work: Work) -> None:
    """Write messages of its own to the pipe, each of which reads well and cannot be true."""
    write_to_pipe(json.dumps(work.payload["says"]).encode())
    time.sleep(3600)


def write_to_pipe(data: bytes) -> None:
    for descriptor in range(3, 64):
        with suppress(OSError):
            if str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("socket:"):
                os.write(descriptor, data + b"\n")


class Masked(Exception):
    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise KeyboardInterrupt


def raise_masked(work: Work) -> None:
    raise Masked("who am I")


def do_without_renaming(work: Work) -> None:
    """Let every move of a file or folder in this process succeed, and move nothing."""
    write(work)
    os.rename = os.replace = lambda *_a, **_k: None  # type: ignore[assignment]


def stop_own_group(work: Work) -> None:
    os.killpg(0, signal.SIGTERM)
    write(work)


def fork_and_leave(work: Work) -> None:
    """Let a copy of this process leave the body before it does itself."""
    write(work)
    pid = os.fork()
    if not pid:
        print("the copy was here", flush=True)
        work.progress(77, 77, 77)
        if work.payload.get("raises"):
            raise RuntimeError("the copy raises")
        return
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == bool(work.payload.get("raises"))
    assert (work.out / "value.json").exists()
    os.write(1, b"the copy is gone\n")


def spoil(work: Work) -> None:
    """Leave this process in a state in which the next job of it would fail."""
    write(work)
    if work.payload["what"] == "open":
        import builtins

        builtins.open = None  # type: ignore[assignment]
    elif work.payload["what"] == "streams":
        sys.stdout.close()
    else:
        os.chdir("/")
