"""Steps that are recorded as graphs draw what steps draw that are not."""

import logging
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.learning.choices import HeadType
from pipeline.learning.generation import row_models, sampling
from pipeline.learning.generation import steps as recorded_steps
from pipeline.learning.generation.decode import Decoded, SlotPace
from pipeline.learning.generation.steps import Graphs
from pipeline.learning.models.flops import metered
from pipeline.learning.models.value import ValueModel
from tests.doubles import graphs
from tests.unit.learning.generation.conftest import language_model, opinionated
from tests.unit.learning.generation.test_in_slots import HEADS, Case


@pytest.fixture(autouse=True)
def doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are recorded on the CPU, for lengths that these short texts outgrow."""
    graphs.use_doubles(monkeypatch)
    monkeypatch.setattr(recorded_steps, "is_asked", lambda _: True)
    monkeypatch.setattr(recorded_steps, "LEAST", 4)
    monkeypatch.setattr(recorded_steps, "SHORT", 1)
    monkeypatch.setattr(sampling, "_FEW", 4)  # a nucleus is cut as of a large vocabulary
    recorded_steps.tell.cache_clear()


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def recorded(case: Case, model: PreTrainedModel, value: ValueModel | None = None) -> Decoded:
    whole = replace(case.settings, cuda_graphs=True)
    before, case.settings = case.settings, whole
    try:
        return case.drawn(model, value)
    finally:
        case.settings = before


def check(case: Case, model: PreTrainedModel, value: ValueModel | None = None) -> None:
    with metered() as plainly:
        theirs = case.drawn(model, value)
    with metered() as by_graphs:
        ours = recorded(case, model, value)
    assert ours.tokens == theirs.tokens
    assert ours.kl == pytest.approx(theirs.kl, abs=1e-4)
    assert by_graphs.total >= plainly.total  # tokens without a choice are valued too


@pytest.mark.parametrize(
    ("kind", "head", "seeds"),
    [
        ("gpt2", None, (0, 3)),
        ("gpt2", HeadType.v, (1, 2)),
        ("llama", HeadType.v, (0, 3)),
        ("llama", HeadType.q, (1, 2)),
        ("gemma2", HeadType.q, (0, 3)),
    ],
)
def test_what_is_drawn(kind: str, head: HeadType | None, seeds: tuple[int, ...]) -> None:
    model = language_model(kind)
    value = head and opinionated(model, head)
    for seed in seeds:
        case = Case(seed)
        case.pace = SlotPace(look_every=[1, 3, 4, 8][seed])
        check(case, model, value)
    assert graphs.Graph.replays > 5 * len(seeds)


@pytest.mark.parametrize("head", HEADS)
def test_a_step_that_cannot_be_recorded_is_told_of_once(
    head: HeadType | None, caplog: pytest.LogCaptureFixture
) -> None:
    model = unrecordable()
    value, case = head and opinionated(language_model("llama"), head), Case(2)
    theirs = case.drawn(model, value)
    ours = [recorded(case, model, value) for _ in range(2)]
    assert graphs.Graph.replays == 0
    assert len(told(caplog)) == 1
    assert ours[0].tokens == theirs.tokens
    # Whatever this process has met before, and what graphs would draw.
    by_graphs = recorded(case, language_model("llama"), head and opinionated(language_model("llama"), head))
    assert ours[0].kl.tobytes() == ours[1].kl.tobytes() == by_graphs.kl.tobytes()
    assert graphs.Graph.replays > 0
    assert "generation.cuda_graphs: a step could not be recorded (operation not permitted" in told(caplog)[0]


def unrecordable() -> PreTrainedModel:
    model = language_model("llama")
    model.model.norm.register_forward_hook(
        lambda _module, _given, found: found * float(found.numel() > found.sum())
    )
    return model


def test_a_recording_that_fails_leaves_the_device_as_it_was() -> None:
    recorder, before = Graphs(), graphs.Left.current
    numbers = torch.ones(3)
    with pytest.raises(RuntimeError, match="not permitted") as caught:
        recorder.recorded(lambda: fail(str(float(numbers.sum()))))
    assert caught.value.__cause__ is None
    assert graphs.Left.current is before
    assert not graphs.Left.pools
    assert graphs.Left.users[recorder._pool] == 0
    assert not graphs.Left.generating
    with pytest.raises(RuntimeError, match="of the work's own"):  # after which torch ends the recording
        recorder.recorded(lambda: fail("of the work's own"))
    assert graphs.Left.current is before
    recorder.recorded(partial(added, numbers))()  # and others can be recorded still
    assert numbers.tolist() == [2, 2, 2]


def added(numbers: Tensor) -> None:
    numbers.add_(1)


def fail(why: str) -> None:
    raise RuntimeError(why)


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("split", "several devices share the policy"),
        ("shard", "several devices share the policy"),
        ("spread", "the policy is on several devices"),
        ("own cache", "rows of the policy begin"),
    ],
)
def test_what_cannot_be_recorded_is_decoded_without(
    why: str, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    case, model = Case(2), language_model("llama")
    theirs = case.drawn(model)
    with monkeypatch.context() as patch:
        if why == "split":
            patch.setattr(recorded_steps, "split_over", lambda _: object())
        if why == "shard":
            patch.setattr(torch.nn.Parameter, "full_tensor", None, raising=False)
        if why == "spread":
            two = [torch.nn.Parameter(torch.empty(1, device=device)) for device in ("cpu", "meta")]
            patch.setattr(type(model), "parameters", lambda _, recurse=True: iter(two))
        if why == "own cache":
            patch.setattr(row_models, "reads_rows", lambda _: False)
        ours = [recorded(case, model) for _ in range(2)]
    assert ours[0].tokens == ours[1].tokens == theirs.tokens
    if why != "own cache":
        assert ours[0].kl.tobytes() == theirs.kl.tobytes()
    assert graphs.Graph.replays == 0
    assert len(told(caplog)) == 1
    assert said in told(caplog)[0]
