"""Which signatures fit which columns: the binder says what Python says when the call is made."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.learning.rewards.calling import GIVEN, mismatch


def plain(completions: Sequence[str], solution: Sequence[str], **_: Any) -> None: ...


def everything(**columns: Any) -> None: ...


def by_keyword(*, completions: Sequence[str], level: Sequence[int], solution: str = "", **_: Any) -> None: ...


def all_named(
    prompts: Any, completions: Any, completion_ids: Any, trainer_state: Any, log_extra: Any, log_metric: Any
) -> None: ...


def by_place(completions: Any, /, **_: Any) -> None: ...


def defaults_by_place(completions: Any = None, /, **_: Any) -> None: ...


def decorated(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """`wrapper` as `functools.wraps` dresses one around a function of one completion."""

    def one(completion: str, level: int) -> None: ...

    return wraps(one)(wrapper)


class Callable_:
    def __call__(self, completions: Sequence[str], level: Sequence[int], **_: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "columns", "missing", "said"),
    [
        (plain, ["solution"], None, ""),
        (plain, ["solution", "level"], None, ""),
        (plain, ["answer"], ("solution",), ""),
        (everything, [], None, ""),
        (by_keyword, ["level"], None, ""),
        (by_keyword, [], ("level",), ""),
        (all_named, [], None, ""),
        (all_named, ["level"], (), "end its parameters with **_"),
        (partial(plain, solution=["a"]), [], None, ""),
        (partial(by_keyword, solution="a"), [], ("level",), ""),
        (Callable_(), ["level"], None, ""),
        (Callable_(), [], ("level",), ""),
        (Callable_, ["level"], (), "is a class"),
        (by_place, [], (), "takes completions by position alone"),
        (defaults_by_place, [], None, ""),
        (lambda completions: [1.0], [], (), "takes completions, but is called with prompts, completion_ids"),
        (decorated(lambda completions, **_: None), [], None, ""),
        (decorated(lambda *a, **k: None), ["level"], ("completion",), ""),
        (max, [], None, ""),  # a compiled function names no signature
    ],
)
def test_what_a_signature_needs(
    function: Callable[..., Any], columns: list[str], missing: tuple[str, ...] | None, said: str
) -> None:
    found = mismatch(function, columns)
    if missing is None:
        assert found is None
    else:
        assert found is not None
        assert found.missing == missing
        assert said in found.said


def test_settings_count_as_arguments() -> None:
    assert mismatch(by_keyword, [], ["level"]) is None


_NAMES = st.sampled_from(["solution", "level", "x", "answer", *GIVEN])
_KINDS = st.sampled_from(
    [
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    ]
)


@st.composite
def signatures(draw: st.DrawFn) -> inspect.Signature:
    """Any parameters, in an order that Python allows."""
    names = draw(st.lists(_NAMES, unique=True, max_size=9))
    made = [
        inspect.Parameter(name, draw(_KINDS), default=draw(st.sampled_from([inspect.Parameter.empty, None])))
        for name in names
    ]
    made.sort(key=lambda each: (each.kind, each.kind != each.KEYWORD_ONLY and each.default is not each.empty))
    defaults = {each.default is each.empty for each in made if each.kind != each.KEYWORD_ONLY}
    if len(defaults) == 2:  # one without a default may not follow one with it, whatever their kinds
        made = [each.replace(default=None) if each.kind == each.POSITIONAL_OR_KEYWORD else each for each in made]
    if draw(st.booleans()):
        made.append(inspect.Parameter("rest", inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(made)


@pytest.mark.properties
@given(signatures(), st.lists(st.sampled_from(["solution", "level", "answer"]), unique=True))
def test_the_binder_agrees_with_python(signature: inspect.Signature, columns: list[str]) -> None:
    made: dict[str, Callable[..., None]] = {}
    exec(f"def function{signature}: pass", made)
    found = mismatch(made["function"], columns)
    try:
        made["function"](**dict.fromkeys([*GIVEN, *columns]))
    except TypeError:
        assert found is not None
        named = [*found.missing, *found.said.replace(",", " ").split()]
        assert set(named) & {*signature.parameters, *GIVEN, *columns}
    else:
        assert found is None
