"""How torch is set up in a process that runs stages: as soon as one of them imports it, which some never do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from pipeline.machine.garbage import imported_for_good

_LARGE = ("transformers", "transformers.modeling_utils")
"""Modules that import, with themselves, most of what takes long besides torch."""


def prepare_torch(threads: int, device: str = "cpu", *, trains: bool = False, exact: bool = True) -> None:
    """Make what torch computes depend on nothing but the job: now, or where it is not imported yet, once it is.

    Importing torch and transformers takes seconds, so it is left to the stages that compute with them.

    Args:
        threads: That torch may use.
        device: ``cpu`` or ``cuda``.
        trains: Whether the stage trains a model; the others only read and draw.
        exact: As `training.deterministic`.
    """
    when_imported("torch", partial(_set_up_torch, threads, device.startswith("cuda") and exact, trains))
    when_imported("transformers.utils.logging", _hide_progress_bars)
    for name in _LARGE:
        when_imported(name, _nothing)


def when_imported(name: str, act: Callable[[], None]) -> None:
    """Do something now if a module is imported, else right after its import, once.

    Args:
        name: Of the module, in full.
        act: Asked for again under the same name before the import, it takes the place of the one before.
    """
    if name in sys.modules:
        act()
        return
    sys.meta_path[:] = [one for one in sys.meta_path if not (isinstance(one, _AtImport) and one.name == name)]
    sys.meta_path.insert(0, _AtImport(name, act))


class _AtImport(MetaPathFinder):
    """Finds one module as the others on `sys.meta_path` do, and acts when it is there."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self.name, self._act = name, act

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """How Python asks; None for every other module."""
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._act_after(spec.loader)
        return spec

    def _act_after(self, loader: Loader) -> None:
        """Change this one loader, this one time: the module keeps the loader that it always has."""
        execute = loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            del loader.exec_module
            with imported_for_good():
                execute(module)
            self._act()

        loader.exec_module = execute_and_act  # type: ignore[method-assign]


def _nothing() -> None:
    """Large modules need no more than to be imported as such."""


def _set_up_torch(threads: int, by_stage: bool, trains: bool) -> None:
    import torch

    torch.set_num_threads(threads)
    # Else whatever is made empty is filled with NaN first, which takes longer on a GPU than much that is computed.
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False
    if not by_stage:
        torch.use_deterministic_algorithms(True, warn_only=True)
    elif trains:
        # Not to warn only: the backward passes of attention look whether they must, and take other kernels if not.
        torch.use_deterministic_algorithms(True)
    else:
        # Nothing is added up in an order of chance without a backward pass, and scatter would become a sort.
        torch.use_deterministic_algorithms(False)


def _hide_progress_bars() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()
