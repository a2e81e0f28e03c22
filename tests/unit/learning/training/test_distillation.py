"""Distillation: TRL's divergences, a guided teacher's probabilities at every token, and steps as of TRL."""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.learning.algos import online
from pipeline.learning.choices import HeadType, Others
from pipeline.learning.generation import row_models, sampling
from pipeline.learning.generation.guided import GuidedLogitsProcessor
from pipeline.learning.models import flops
from pipeline.learning.training import distillation, loop, scoring
from pipeline.learning.training.distillation import Teacher
from pipeline.learning.training.sequences import Sequences, batch_of
from tests.doubles.models import PLAINLY, fitting, tiny_policy
from tests.unit.learning.generation.conftest import VOCABULARY, language_model, opinionated

BETAS = (0.0, 0.1, 0.5, 0.9, 1.0)
IDS = [[0, 3, 4, 5, 6, 7], [0, 9, 8, 7, 6, 5, 4, 3, 2], [0, 1, 2], [0, 12, 3, 16, 1]]
TEXTS = Sequences.of(IDS, [3, 4, 2, 2], [0.0] * 4)


def logits(seed: int, *shape: int) -> Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("beta", BETAS)
def test_divergences_and_their_gradients_are_those_of_trl(
    beta: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from trl.experimental.gkd import GKDTrainer

    student, teacher = (logits(seed, 2, 5, 13).to(dtype).requires_grad_(seed == 0) for seed in (0, 1))
    mask = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]]).bool()
    labels = torch.where(mask, 1, -100)
    theirs = GKDTrainer.generalized_jsd_loss(student, teacher, labels, beta=beta, temperature=0.7)
    each = [(one / 0.7).log_softmax(-1) for one in (student, teacher)]
    ours = distillation.generalized_jsd(*each, beta)[mask].mean()
    gradients = [torch.autograd.grad(loss, student, retain_graph=True)[0] for loss in (ours, theirs)]
    tolerance = 1e-12 if dtype is torch.float64 else 2e-6
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)
    torch.testing.assert_close(*gradients, rtol=0, atol=tolerance)


@pytest.mark.parametrize("beta", BETAS)
def test_a_token_that_neither_can_take_adds_nothing(beta: float) -> None:
    student, teacher = (logits(seed, 3, 5).log_softmax(-1) for seed in (0, 1))
    wide = [torch.nn.functional.pad(one, (0, 2), value=-math.inf) for one in (student, teacher)]
    found = distillation.generalized_jsd(*wide, beta)
    torch.testing.assert_close(found, distillation.generalized_jsd(student, teacher, beta))


def guided(kind: str, head: HeadType, others: Others, **given: Any) -> Teacher:
    model = language_model(kind)
    tilt = sampling.Tilt(sampling.bernoulli_offset(0.3), **{"top_k": 4, "others": others, **given})
    return Teacher(model, VOCABULARY, 0.8, opinionated(model, head), tilt)


def columns_of(teacher: Teacher, texts: Sequences = TEXTS) -> np.ndarray:
    size = 2 * teacher.candidates + 1
    found = scoring.score_sequences(
        texts,
        lambda batch: teacher.columns(batch).flatten(1),
        micro_batch_size=3,
        device="cpu",
        width=texts.ids.shape[1] * size,
    )
    return found.astype(np.float32).reshape(*texts.ids.shape, size)


def taught(teacher: Teacher, texts: Sequences = TEXTS) -> Tensor:
    """The teacher's log-probabilities of every supervised token, row by row."""
    columns, batch = columns_of(teacher, texts), batch_of(texts, np.arange(len(texts)), "cpu")
    outputs, to_logits = scoring.supervised_outputs(teacher.model, batch)
    return teacher.logprobs(to_logits(outputs), torch.from_numpy(columns[texts.mask()]))


def by_step(teacher: Teacher, texts: Sequences = TEXTS) -> Tensor:
    """The same by the guide that reads each prefix anew."""
    assert teacher.value is not None
    assert teacher.tilt is not None
    processor = GuidedLogitsProcessor(teacher.value, teacher.tilt, sampling=sampling.Sampling(temperature=0.8))
    rows = []
    for ids, start, end in zip(texts.ids, texts.starts, texts.lengths, strict=True):
        for place in range(start, end):
            prefix = torch.from_numpy(ids[None, :place].astype(np.int64))
            rows.append(processor(prefix, teacher.model(prefix).logits[:, -1]))
    return torch.cat(rows)


@pytest.mark.parametrize("given", [{}, {"min_p": 0.06}, {"top_k": VOCABULARY}, {"top_k": 1}], ids=str)
@pytest.mark.parametrize("others", [Others.kept, Others.offset_zero])
@pytest.mark.parametrize("head", HeadType)
@torch.no_grad()
def test_a_guided_teacher_has_the_probabilities_of_guided_decoding(
    head: HeadType, others: Others, given: dict[str, Any]
) -> None:
    teacher = guided("gpt2", head, others, **given)
    found = taught(teacher)
    torch.testing.assert_close(found, by_step(teacher), rtol=0, atol=2e-5)
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(len(found)), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "offset", [sampling.bernoulli_offset, sampling.expected_offset, sampling.preference_offset]
)
@pytest.mark.parametrize("others", [Others.kept, Others.offset_zero])
@torch.no_grad()
def test_a_guide_of_infinite_eta_teaches_the_reference(others: Others, offset: Callable[..., Any]) -> None:
    teacher = guided("gpt2", HeadType.q, others)
    weak = replace(teacher, tilt=sampling.Tilt(offset(math.inf), top_k=4, others=others))
    batch = batch_of(TEXTS, np.arange(len(TEXTS)), "cpu")
    outputs, to_logits = scoring.supervised_outputs(teacher.model, batch)
    torch.testing.assert_close(taught(weak), teacher.logprobs(to_logits(outputs), None), rtol=0, atol=1e-5)


@pytest.mark.parametrize("head", HeadType)
@pytest.mark.parametrize("kind", ["gpt_neo", "gemma2", "llama"])
@torch.no_grad()
def test_a_guide_of_any_family_teaches(kind: str, head: HeadType) -> None:
    teacher = guided(kind, head, Others.kept)
    torch.testing.assert_close(taught(teacher), by_step(teacher), rtol=0, atol=2e-5)


@torch.no_grad()
def test_a_guide_without_a_cache_reads_texts_of_equal_prompts_together(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = guided("gpt2", HeadType.v, Others.kept)
    expected = taught(teacher)
    monkeypatch.setattr(row_models, "reading", lambda _: row_models.Way.anew)
    torch.testing.assert_close(taught(teacher), expected, rtol=0, atol=2e-5)


def loss_and_gradient(
    model: PreTrainedModel, teacher: Teacher, columns: np.ndarray | None
) -> tuple[float, Tensor]:
    made = distillation.distilled_set(model, TEXTS, teacher, columns, 0.5)
    whole, total = np.arange(len(TEXTS)), torch.zeros(())
    for part in (whole[:3], whole[3:]):
        total = total + made.loss_of(batch_of(TEXTS, part, "cpu"), part, whole)
    (gradient,) = torch.autograd.grad(total, model.get_input_embeddings().weight)
    return total.item(), gradient


@pytest.mark.parametrize("way", ["in parts", "without padding"])
def test_logits_in_parts_and_texts_without_padding_give_the_same_loss(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = guided("llama", HeadType.q, Others.kept)
    model = language_model("llama", seed=3).requires_grad_(True)
    columns = columns_of(teacher)
    expected = loss_and_gradient(model, teacher, columns)
    if way == "in parts":
        for module in (scoring, distillation):
            monkeypatch.setattr(module, "LOGITS_AT_ONCE", 2 * VOCABULARY)
        np.testing.assert_allclose(columns_of(teacher), columns, rtol=0, atol=2e-5)
    with scoring.without_padding(model, wanted=way == "without padding"):
        found = loss_and_gradient(model, teacher, columns)
    assert found[0] == pytest.approx(expected[0], abs=1e-6)
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("head", HeadType)
def test_flops_of_a_teacher_follow_from_its_tokens(head: HeadType) -> None:
    """Of the reference twice; of a head "v" with two tokens as candidates these, and a taken one beside them."""
    teacher = guided("gpt2", head, Others.kept, top_k=2)
    assert teacher.value is not None
    columns = columns_of(teacher)
    with flops.metered() as meter:
        distillation.note_taught(teacher, TEXTS, columns, epochs=1)
    lengths, starts, mask = TEXTS.lengths, TEXTS.starts, TEXTS.mask()
    own = flops.model_cost(teacher.model).forward(scoring.passes_of(teacher.model, TEXTS))
    read = flops.whole_texts(lengths)
    if head is HeadType.v:
        beside = ~(columns[..., :2] == TEXTS.ids[..., None]).any(-1) & mask
        tokens = 2 * mask.sum() + beside.sum()
        reached = np.arange(1, mask.shape[1] + 1)
        read = flops.whole_texts(starts) + flops.Pass(
            int(tokens), int(((2 * mask + beside) * reached).sum()), int(tokens)
        )
    assert meter.flops == {"scoring": 2 * own + flops.model_cost(teacher.value).forward(read)}


def of_trl(
    folder: Path, student: PreTrainedModel, teacher: PreTrainedModel, beta: float
) -> list[dict[str, Tensor]]:
    """Train a student by TRL, and return the batches that it has drawn."""
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast
    from trl import DistillationConfig, DistillationTrainer

    made = Tokenizer(WordLevel({str(number): number for number in range(10)}, unk_token="0"))
    made.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="6", pad_token="8", unk_token="0")
    batches: list[dict[str, Tensor]] = []

    class Recording(DistillationTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            batches.append(super()._generate_and_score_completions(inputs))
            return batches[-1]

    assert student.generation_config is not None
    student.generation_config.eos_token_id = 6
    trainer = Recording(
        model=student,
        teacher_model=teacher,
        args=DistillationConfig(
            output_dir=str(folder),
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            max_completion_length=5,
            temperature=2.0,
            beta=beta,
            max_steps=4,
            seed=1,
            **PLAINLY,
        ),
        train_dataset=Dataset.from_list([{"prompt": f"{a} {b} 5"} for a in range(8) for b in range(4)]),
        processing_class=tokenizer,
    )
    trainer.train()
    return batches


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_from_the_same_completions_weights_are_those_of_trls_trainer(beta: float, tmp_path: Path) -> None:
    """Four steps with accumulation, with completions of different lengths."""
    theirs, ours, large = tiny_policy(), tiny_policy(), tiny_policy(seed=1, width=24)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TRL's own doing
        batches = of_trl(tmp_path, theirs, tiny_policy(seed=1, width=24), beta)
    teacher, lengths = Teacher(large, 13, 2.0), set[int]()

    def drawn(number: int) -> online.DrawnBatch:
        given = batches[number]
        prompts, completions = (
            [row[real.bool()].tolist() for row, real in zip(given[f"{of}_ids"], given[f"{of}_mask"], strict=True)]
            for of in ("prompt", "completion")
        )
        ids = [prompt + rest for prompt, rest in zip(prompts, completions, strict=True)]
        data = Sequences.of(ids, [*map(len, prompts)], [0.0] * len(ids))
        lengths.update(data.lengths.tolist())
        return online.DrawnBatch(distillation.distilled_set(ours, data, teacher, None, beta))

    curve = loop.Curve(training="t", folder=tmp_path)
    how = fitting(batch_size=16, weight_decay=0.0, horizon=math.inf, curve=curve)
    table = online.Timetable(16 * len(batches), 16, 16)
    online.fit_drawn(ours, table, drawn, how, longest=5)
    assert len(lengths) > 1
    for name, weight in ours.named_parameters():
        torch.testing.assert_close(weight, theirs.get_parameter(name), rtol=0, atol=2e-5)
