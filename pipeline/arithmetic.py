"""Set variables by which libraries use the same instructions on every x86-64 processor with AVX2.

torch, oneDNN, MKL and NumPy ask the processor what it offers and add up floats in an order that follows from the
answer. Each reads a variable that says what to take instead, once, when it is imported or first used. So the
variables are set before: NumPy's in every command, by `commands.start`, since it costs nothing; the others in the
environment of workers, and in this process where it carries out jobs itself. See docs/arithmetic.md.
"""

import os
import platform
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path


def covers(machine: str) -> bool:
    """Return whether a machine (by `platform.machine`) can compute the same results as others."""
    return machine in ("x86_64", "AMD64")


_X86_64: dict[str, dict[str, str]] = {
    "numpy": {
        # As NumPy 2.4 names what its wheels choose at run time.
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
        "OPENBLAS_CORETYPE": "Haswell",
    },
    "torch": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        # The only branch of MKL that is the same for all makers.
        "MKL_CBWR": "COMPATIBLE",
    },
}
PINS = _X86_64 if covers(platform.machine()) else {library: dict[str, str]() for library in _X86_64}
"""Library -> variable -> value; elsewhere none, as torch warns of names that its processor lacks."""
_CONTRARY = {"numpy": ("NPY_ENABLE_CPU_FEATURES",), "torch": ("DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")}
"""Variables that contradict those above, or that a library refuses beside them."""
UNASKED = (
    *("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION"),
    *("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"),
    *("PYTORCH_TUNABLEOP_ENABLED", "TRANSFORMERS_SDPA_FORCE_GQA"),
)
"""Variables that change rounding unasked and are in no key; workers lack them."""
_OUTSIDE = dict(os.environ)
_pinned: set[str] = set()
"""Libraries that were not imported yet in this process when their variables were set."""


def pinned(environment: Mapping[str, str], *libraries: str) -> dict[str, str]:
    """Return an environment in which these libraries compute the same results on every processor."""
    contrary = {name for library in libraries for name in _CONTRARY[library]}
    kept = {name: value for name, value in environment.items() if name not in contrary}
    return kept | {name: value for library in libraries for name, value in PINS[library].items()}


def is_pinned(environment: Mapping[str, str], *libraries: str) -> bool:
    """Return whether an environment is a result of `pinned`."""
    # Asked of each output: a copy of the environment to compare with takes ten times as long.
    return not any(name in environment for library in libraries for name in _CONTRARY[library]) and all(
        environment.get(name) == value for library in libraries for name, value in PINS[library].items()
    )


def pin(*libraries: str) -> list[str]:
    """Set the variables in this process, for libraries that are imported later.

    Returns:
        Those that were imported before, without the variables. They compute as the processor suggests.
    """
    late = [name for name in imported_unpinned() if name in libraries]
    ready = [name for name in libraries if name not in late]
    for name in [name for library in ready for name in _CONTRARY[library]]:
        os.environ.pop(name, None)
    os.environ.update(pinned(os.environ, *ready))
    _pinned.update(ready)
    return late


def imported_unpinned() -> list[str]:
    """Libraries that this process has imported without their variables."""
    here = [name for name in PINS if name in sys.modules and name not in _pinned]
    return [name for name in here if not is_pinned(os.environ, name)]


def outside(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without this process's pins, for programs that are not ours."""
    ours = {name for library in PINS for name in (*PINS[library], *_CONTRARY[library])}
    kept = {name: value for name, value in environment.items() if name not in ours}
    return kept | {name: value for name, value in _OUTSIDE.items() if name in ours}


def overridden(*libraries: str) -> list[str]:
    """Return variables, as ``NAME=value``, that the user has set to values other than the pins."""
    wanted = pinned({}, *libraries)
    names = [*wanted, *(name for library in libraries for name in _CONTRARY[library]), *UNASKED]
    given = {name: _OUTSIDE[name] for name in names if name in _OUTSIDE}
    return [f"{name}={value}" for name, value in given.items() if value != wanted.get(name)]


def describe(environment: Mapping[str, str], device: str, name: str) -> str:
    """Describe what computes on a device of this process, for manifests: ``portable``, or a processor or GPU.

    Args:
        environment: Environment of the process.
        device: ``cpu`` or ``cuda``.
        name: Product name of the device, the same for jobs that use torch and those that do not.
    """
    if device != "cpu":
        return name
    if is_pinned(environment, *PINS) and covers(platform.machine()):
        return "portable"
    given = [environment[name] for name in PINS["torch"] if name in environment]
    return f"{processor()}, {', '.join(given) or 'all that it offers'}"


@cache
def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the processor, or else the kind of machine."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), platform.machine())
