"""Steps on a GPU ask for next to no numbers, and draw what steps draw that ask for some."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from pipeline.learning.choices import HeadType, Others
from pipeline.learning.generation import sampling
from pipeline.learning.generation.decode import DecodeSettings, Guidance, SlotPace, _Slots, decode
from pipeline.learning.generation.sampling import Tilt, preference_offset, sample_keys
from pipeline.learning.models.flops import metered
from tests.doubles.graphs import waits
from tests.unit.learning.generation.conftest import language_model, opinionated
from tests.unit.learning.generation.test_in_slots import ATOMS, HEADS, Case, sure_of_itself, with_atoms

BY_HAND = ("cpu", "tolist", "numpy")


class Asked(TorchDispatchMode):
    """Counts what a GPU would be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, op: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += waits(op, args, kwargs or {})
        return op(*args, **(kwargs or {}))


@contextmanager
def asked_in_steps() -> Iterator[list[int]]:
    """How often numbers are asked for in each step: from logits to tokens, and reading these."""
    found: list[int] = []
    mode = Asked()

    def watched(of: Callable[..., Any], begins: bool) -> Callable[..., Any]:
        def step(*args: Any) -> Any:
            before = mode.count
            with mode, pytest.MonkeyPatch.context() as patch:
                for name in BY_HAND:
                    patch.setattr(Tensor, name, by_hand(getattr(Tensor, name)))
                done = of(*args)
            if begins:
                found.append(0)
            found[-1] += mode.count - before
            return done

        return step

    def by_hand(method: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            mode.count += 1
            return method(*args)

        return called

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Slots, "_take", watched(_Slots._take, begins=True))
        patch.setattr(_Slots, "_read", watched(_Slots._read, begins=False))
        yield found


def most_asked(model: PreTrainedModel, head: HeadType | None, tilt: Tilt, **given: Any) -> int:
    value = head and (with_atoms if tilt is ATOMS else opinionated)(model, head)
    settings = DecodeSettings(batch_size=3, eos_id=5, **given)
    with asked_in_steps() as found:
        decode(
            model,
            [[1], [2, 3], [4, 5, 6], [7, 8], [9]],
            [6, 3, 4, 5, 3],
            settings,
            keys=sample_keys(0, "test", np.arange(5), 1),
            guidance=None if value is None else Guidance(value, tilt),
            pace=SlotPace(look_every=4),
        )
    assert len(found) >= 6
    return max(found)


KEPT = Tilt(preference_offset(0.7), top_k=6, min_p=0.05)
SHARED = Tilt(preference_offset(0.7), top_k=6, min_p=0.05, others=Others.offset_zero)
ASKED = {HeadType.q: (0, 3), HeadType.v: (1, 5)}
"""How often a step asks at most, on a GPU and on a CPU."""


@pytest.mark.parametrize(
    ("head", "on_gpu", "on_cpu", "tilt"),
    [
        (None, 0, 0, KEPT),  # nothing is tilted
        *((head, *times, tilt) for head, times in ASKED.items() for tilt in (KEPT, SHARED, ATOMS)),
    ],
)
def test_what_a_step_asks_for(
    head: HeadType | None, on_gpu: int, on_cpu: int, tilt: Tilt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing on a GPU, but that a value model which reads candidates must know how many there are."""
    models = [language_model("gpt2"), sure_of_itself("llama")]
    assert max(most_asked(model, head, tilt, top_p=0.9) for model in models) <= on_cpu
    monkeypatch.setattr(sampling, "may_ask", lambda _: False)
    assert max(most_asked(model, head, tilt, top_p=0.9) for model in models) <= on_gpu


@pytest.mark.parametrize("head", [head for head in HEADS if head])
@pytest.mark.parametrize("make", [language_model, sure_of_itself], ids=["candidates", "often one alone"])
def test_steps_that_ask_for_nothing_draw_the_same(
    head: HeadType, make: Callable[[str], PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make("llama")
    value = opinionated(model, head)
    for seed in range(3):  # as many as `Others`
        case = Case(seed)
        case.tilt = replace(case.tilt, top_k=6, min_p=0.05, others=list(Others)[seed % 3])
        with metered() as asking:
            theirs = case.drawn(model, value)
        monkeypatch.setattr(sampling, "may_ask", lambda _: False)
        with metered() as meter:
            ours = case.drawn(model, value)
        monkeypatch.undo()
        assert ours.tokens == theirs.tokens
        assert ours.kl == pytest.approx(theirs.kl, abs=1e-4)
        assert meter.total == asking.total


def test_a_gpu_is_asked_for_nothing_to_save_work() -> None:
    class OnGpu:
        is_cuda = True

    assert sampling.may_ask(torch.zeros(1))
    assert not sampling.may_ask(OnGpu())  # type: ignore[arg-type]
