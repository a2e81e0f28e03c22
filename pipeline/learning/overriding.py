"""Methods of the user's own that cannot be called as those of ours that they override."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator


def other_arguments(kind: type, told: Collection[str] = ()) -> Iterator[str]:
    """What is wrong with the arguments of methods, which would show in the midst of a run.

    Args:
        kind: A class that builds on one of ours.
        told: Methods of which that is told elsewhere.
    """
    for name in sorted(dir(kind)):
        owner = next(base for base in kind.__mro__ if name in vars(base))
        ours = next((base for base in kind.__mro__ if ships(base) and name in vars(base)), None)
        if name.startswith("_") or name in told or ours in (None, owner):
            continue
        given, expected = vars(owner)[name], vars(ours)[name]
        if not (inspect.isfunction(given) and inspect.isfunction(expected)):
            continue
        wanted = [each for each in inspect.signature(expected).parameters.values() if each.default is each.empty]
        by_name = {each.name: None for each in wanted if each.kind is each.KEYWORD_ONLY}
        try:
            inspect.signature(given).bind(*[None] * (len(wanted) - len(by_name)), **by_name)
        except TypeError:
            listed = ", ".join(each.name for each in wanted)
            yield (
                f"its method {name}() is called as that of {ours.__name__}, which it overrides: write "
                f"def {name}({listed}), or call it otherwise if it is something else"
            )


def ships(kind: type) -> bool:
    """Whether a class is one of this package."""
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]
