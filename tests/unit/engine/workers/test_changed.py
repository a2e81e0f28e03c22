"""What a job may leave changed in its process, and what later jobs would not mind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pipeline

SPOILED = {
    "os.chdir('/')": "the working directory",
    "os.umask(0o777)": "the umask",
    "os.environ['PATH'] = ''": "the environment",
    "sys.path.remove('/a/folder')": "the search path of modules",
    "import builtins; builtins.open = None": "built-in functions",
    "sys.stdout.close()": "the standard streams",
    "sys.stderr = None": "the standard streams",
    "os.close(0)": "descriptors 0 to 2",
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)": "signal handlers",
    "signal.alarm(60)": "signal handlers",
    "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 20))": "limits of the process",
    "threading.Thread(target=threading.Event().wait).start()": "threads that still run",
    "torch.is_grad_enabled = lambda: False": "defaults of torch",
    "os.environ['ADDED'] = '1'": "",
    "sys.path.insert(0, '/')": "",
    "threading.Thread(target=threading.Event().wait, daemon=True).start()": "",
    "signal.signal(signal.SIGCHLD, signal.SIG_IGN)": "",
}

SCRIPT = """
import os, resource, signal, sys, threading, traceback
from types import SimpleNamespace
from pipeline.engine.workers.runner import changed_since, process_state

torch = SimpleNamespace(  # the real one takes seconds to import
    is_grad_enabled=lambda: True, is_inference_mode_enabled=lambda: False,
    get_default_dtype=lambda: "torch.float32", get_default_device=lambda: "cpu",
)
sys.path.append("/a/folder")
os.environ["HOME"] = "/"
state = process_state()
assert changed_since(state) == ""
sys.modules["torch"] = torch
assert changed_since(state) == ""
for line in eval(sys.argv[1]):
    read, write = os.pipe()
    if not os.fork():
        exec(line)
        os.write(write, changed_since(state).encode() or b"nothing")
        os._exit(0)
    os.close(write)
    print(os.read(read, 1000).decode(), flush=True)
"""


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    """What is told of each, all of them tried in copies of one process."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, repr(list(SPOILED))],
        cwd=Path(pipeline.__file__).parents[1],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(SPOILED, done.stdout.splitlines(), strict=True))


@pytest.mark.parametrize("change", SPOILED)
def test_what_later_jobs_rely_on_is_told_when_it_differs(found: dict[str, str], change: str) -> None:
    assert found[change] == (SPOILED[change] or "nothing")
