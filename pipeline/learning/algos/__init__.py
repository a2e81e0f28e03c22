"""Methods: stages and settings, which planning imports without torch, and the work on models in workers."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipeline.machine.memory import imported_for_good

LOADING: ContextVar[Callable[[], AbstractContextManager[None]]] = ContextVar("loading", default=nullcontext)
"""`JobContext.loading` of the current job."""
_PARTS = "pipeline.learning.algos.parts"

if TYPE_CHECKING:
    from pipeline.learning.algos import parts as parts
else:

    class _Parts:
        """Proxy of the module `parts`, which is imported, and torch with it, at the first use of an attribute."""

        def __getattr__(self, name: str) -> Any:
            if _PARTS not in sys.modules:
                with LOADING.get()(), imported_for_good():
                    import_module(_PARTS)
            return getattr(sys.modules[_PARTS], name)

    parts = _Parts()
