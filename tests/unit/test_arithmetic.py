"""Libraries are told which instructions to take, whatever the processor offers and whoever started the command."""

import json
import os
import subprocess
import sys
from pathlib import Path

from pipeline import arithmetic
from pipeline.commands.check import DOCUMENTED, MADE_WITH, compare
from pipeline.terminal.console import Verdict
from tests.doubles.composing import quick_config

CONTRARY = {
    "ATEN_CPU_CAPABILITY": "avx512",
    "ONEDNN_MAX_CPU_ISA": "ALL",
    "MKL_CBWR": "AUTO",
    "NPY_ENABLE_CPU_FEATURES": "X86_V4",
}
DOCS = Path(__file__).parents[2] / "docs" / "arithmetic.md"


def said_by(code: str, **variables: str) -> object:
    outside = {
        name: value for name, value in os.environ.items() if name not in arithmetic.pinned({}, *arithmetic.PINS)
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env={**outside, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_is_set_outside_is_overridden_and_told_and_programs_of_others_get_it() -> None:
    code = (
        "import json, os; from pipeline import arithmetic; late = arithmetic.pin('numpy', 'torch'); import numpy; "
        "kept = [name for name, on in numpy._core._multiarray_umath.__cpu_features__.items() if on]; "
        "told = arithmetic.overridden('numpy', 'torch'); "
        "print(json.dumps([late, dict(os.environ), told, kept, arithmetic.outside(os.environ)]))"
    )
    late, environment, told, features, outside = said_by(code, **CONTRARY)  # type: ignore[misc]
    assert late == []
    assert arithmetic.is_pinned(environment, "numpy", "torch")
    assert sorted(told) == sorted(f"{name}={value}" for name, value in CONTRARY.items())
    assert not {"X86_V3", "X86_V4", "AVX512_ICL"} & set(features)
    names = [*arithmetic.pinned({}, *arithmetic.PINS), *CONTRARY]
    assert {name: outside[name] for name in names if name in outside} == CONTRARY


def test_a_library_that_was_imported_before_is_told() -> None:
    code = (
        "import json, numpy; from pipeline import arithmetic; "
        "print(json.dumps([arithmetic.pin('numpy', 'torch'), arithmetic.pin('numpy')]))"
    )
    assert said_by(code) == [["numpy"], ["numpy"]]
    assert said_by(code, **arithmetic.PINS["numpy"]) == [[], []]  # which were right before


def test_a_manifest_says_portable_or_which_processor() -> None:
    pinned = arithmetic.pinned({}, *arithmetic.PINS)
    of_processor = f"{arithmetic.processor()}, all that it offers"
    assert arithmetic.describe(pinned, "cpu", "a CPU") in ("portable", of_processor)
    assert arithmetic.processor() in arithmetic.describe({}, "cpu", "a CPU")
    assert arithmetic.describe({"MKL_CBWR": "AVX2"}, "cpu", "a CPU").endswith(", AVX2")


def test_an_architecture_without_these_instructions_is_told_nothing_of_them() -> None:
    code = (
        "import json, os, platform; platform.machine = lambda: 'aarch64'; before = dict(os.environ)\n"
        "from pipeline import arithmetic; late = arithmetic.pin(*arithmetic.PINS)\n"
        "print(json.dumps([late, dict(os.environ) == before, arithmetic.describe(os.environ, 'cpu', 'a CPU')]))"
    )
    assert said_by(code) == [[], True, f"{arithmetic.processor()}, all that it offers"]


def test_jobs_on_a_gpu_say_its_name_whether_they_use_torch_or_not(tmp_path: Path) -> None:
    """Else a run whose datasets are prepared without torch seems to rest on several arithmetics."""
    script = (
        "import sys\nfrom pathlib import Path\nfrom types import SimpleNamespace\n"
        "from pipeline.engine.workers.runner import JobRunner\n"
        "runner = JobRunner(print, 'cuda', name='NVIDIA H200')\n"
        "order = SimpleNamespace(job_id='prepare')\n"
        "assert 'torch' not in sys.modules\n"
        "print(runner._origin(order)['arithmetic'])\n"
    )
    command = [sys.executable, "-c", script]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == "NVIDIA H200\n"


def test_the_cpu_profile_is_portable_and_others_are_not() -> None:
    assert quick_config(["experiment.name=t"]).system.portable
    assert not quick_config(["experiment.name=t", "profile=h200"]).system.portable


def test_the_documented_fingerprint_is_the_one_that_is_compared() -> None:
    page = DOCS.read_text()
    assert DOCUMENTED in page
    assert all(f"{name} {used}" in page for name, used in MADE_WITH.items())


def test_a_fingerprint_that_differs_is_a_warning() -> None:
    assert compare(DOCUMENTED, MADE_WITH).verdict is Verdict.PASS
    other = compare("0", {**MADE_WITH, "torch": "9.9.9"})
    assert (other.verdict, "torch 9.9.9" in other.detail) == (Verdict.WARN, True)
