"""All faults of a request that cannot be composed, where Hydra and OmegaConf stop at the first.

The setting that a message is about is left out and the rest composed again, until nothing is refused or the
message is about no setting. That is done only once a request is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pipeline.config.checks import check_config
from pipeline.config.explain import explain
from pipeline.config.schema import Config
from pipeline.config.told import refuse_all
from pipeline.errors import ConfigError

_MOST = 20
"""Faults that are looked for."""
_ADVICE = re.compile(r"\. Did you mean|\bKnown\b")
_LISTED = re.compile(r"^\d+ settings are wrong:\n")


def all_faults(first: Exception, words: Sequence[str], compose: Callable[[Sequence[str]], Config]) -> ConfigError:
    """What is wrong with a request, all of it where that can be found out.

    Args:
        first: What was raised of all words.
        words: Settings, as they were given to Hydra.
        compose: Makes the configuration of some of them.
    """
    problems, left, error = [str(explain(first))], list(words), first
    for _ in range(_MOST):
        rest = _without_culprit(left, str(explain(error)))
        if rest is None:
            break
        left = rest
        try:
            config = compose(left)
        except Exception as another:  # Hydra may raise anything
            error = another
            problems += [str(explain(error))]
            continue
        try:
            check_config(config)
        except ConfigError as others:
            problems += _each(str(others))
        break
    try:
        refuse_all(list(dict.fromkeys(problems)))
    except ConfigError as all_of_them:
        return all_of_them
    return explain(first)


def _each(said: str) -> list[str]:
    """The problems that one message lists, each by itself."""
    if not _LISTED.match(said):
        return [said]
    return [line.removeprefix("  - ") for line in said.split("\n")[1:]]


def _without_culprit(words: list[str], said: str) -> list[str] | None:
    """The settings without the one that a message is about, or with the one that it misses; None for no such."""
    if missing := re.match(r"([\w.]+) is missing", said):
        return [*words, f"{missing[1]}=x"] if f"{missing[1]}=x" not in words else None
    found = [word for word in words if _is_about(said, word)]
    if not found:
        return None
    culprit = max(found, key=lambda word: len(word.partition("=")[0]))
    return [word for word in words if word != culprit]


def _is_about(said: str, word: str) -> bool:
    key, _, value = word.lstrip("+~").partition("=")
    if word in said or re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", _ADVICE.split(said)[0]):
        return True
    return "." not in key and bool(value) and f"'{value.strip('[]')}'" in said
