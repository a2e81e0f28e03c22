"""Draw tokens inside vLLM by the RNG key of each sample, plain or guided: a logits processor.

It leaves one finite logit in each row, that of the token which our own decoder would draw from the same logits. So
texts differ from those of `decode` only through rounding, and vLLM's own sampling has no effect.

vLLM has two interfaces. Its first model runner says which rows were added, removed and moved, and keeps their
tokens in lists. The second one, which GPUs use from vLLM 0.31 on, names a slot for each row of a step, and has
the tokens on the device. `Draws` implements both. Shapes: n rows of a step, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from pipeline.errors import JobError
from pipeline.learning.generation import row_models, sampling
from pipeline.learning.generation.decode import Guidance
from pipeline.learning.generation.steps import guided_step
from pipeline.learning.generation.stops import NOTHING, StopStrings
from pipeline.learning.generation.vllm_plugin import GUIDED
from pipeline.outputs.formats import Sampling

try:
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as SlotProcessor
except ImportError:  # before vLLM 0.31
    SlotProcessor = object

OTHERS = "others"
"""Stream of the draws among tokens that are no candidates, as in our own decoder."""
FLUSH = 64
"""Steps after which results are copied to the host: fewer copies mean fewer waits for a GPU."""


@dataclass(eq=False)
class Request:
    """What a row of vLLM is drawn with.

    Attributes:
        name: Name under which its results are kept; None to keep none.
        key: RNG key; `sampling.LIKELIEST` decodes greedily.
        sampling: Distribution of the policy.
        begun: Last tokens of the prompt that belong to the completion.
        prompt: Token ids of the prompt; None where they are on the device.
        output: Token ids so far, which vLLM appends to; None likewise.
        read: Tokens of the completion that the value model has read; -1 before it has read the prompt.
    """

    name: int | None
    key: np.uint64
    sampling: Sampling
    begun: int = 0
    prompt: Sequence[int] | None = None
    output: list[int] | None = None
    read: int = -1

    @staticmethod
    def of(params: Any, prompt: Sequence[int] | None = None, output: list[int] | None = None) -> Request:
        """Return the request that `arguments` has described."""
        extra = params.extra_args
        drawn = Sampling(temperature=extra["temperature"], top_p=extra["top_p"])
        return Request(extra["name"], np.uint64(int(extra["key"])), drawn, extra["begun"], prompt, output)


def arguments(name: int, key: np.uint64, drawn: Sampling, begun: int) -> dict[str, Any]:
    """Return the `extra_args` of a request; a key is text, since JSON knows no 64 bits."""
    return {"name": name, "key": str(key), "begun": begun, **drawn.options()}


@dataclass
class Told:
    """What is known of the steps of a request, by step: one that is repeated counts once.

    Attributes:
        kl: KL divergence of the step, in nats.
        num_read: Candidates that the value model has read.
        logprobs: Log-probability of the drawn token under the policy's whole distribution.
        values: Value of the drawn token, or those of its atoms, where vLLM has computed them.
        lost: Steps at which what a model computed was no number, with the name of the model.
    """

    kl: dict[int, float] = field(default_factory=dict)
    num_read: dict[int, int] = field(default_factory=dict)
    logprobs: dict[int, float] = field(default_factory=dict)
    values: dict[int, Any] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)

    def first(self, count: int) -> tuple[float, NDArray[np.int64], NDArray[np.float32]]:
        """Return sums over the first steps: KL, candidates read at each step, and log-probabilities.

        Raises:
            JobError: What a model computed in one of them was no number.
        """
        for step in range(count):
            if step in self.lost:
                raise sampling.no_number(self.lost[step])
        read = np.array([self.num_read.get(step, 0) for step in range(count)], np.int64)
        logprobs = np.array([self.logprobs[step] for step in range(count)], np.float32)
        return float(np.sum([self.kl.get(step, 0.0) for step in range(count)])), read, logprobs


class Computed(row_models.VocabularyRows):
    """For head "q": values of one step, which vLLM has computed beside the logits (`vllm_model`)."""

    def __init__(self, known: Tensor) -> None:
        """Take the values of every next token, shape [n, V], or [n, V, a] with a atoms."""
        self.known = known

    def values(self, candidates: Tensor, valid: Tensor, count: int | None = None) -> Tensor:
        """Look the candidates up."""
        return row_models.candidate_values(self.known, candidates)


class Texts(Protocol):
    """The tokens of the rows of a step."""

    def whole(self, rows: Sequence[int]) -> list[list[int]]:
        """Return prompts with the completions so far."""

    def last(self, rows: Sequence[int]) -> Tensor:
        """Return the last tokens, shape [n]."""

    def ends(self, reach: int) -> NDArray[np.int64]:
        """Return the last tokens of completions, `NOTHING` before the first one, shape [all rows, reach]."""


class Draws(LogitsProcessor, SlotProcessor):  # type: ignore[misc] # vLLM is not there when types are checked
    """Draws for the rows of an engine.

    Attributes:
        made: The processor that was made last in this process, by which an engine's owner finds it.
    """

    made: Draws

    def __init__(self, vllm_config: Any, device_or_state: Any, is_pin_memory: bool = False) -> None:
        """Prepare.

        Args:
            vllm_config: Settings of the engine.
            device_or_state: The device, or for the second interface the state of its slots.
            is_pin_memory: Not used.
        """
        self._slots = int(vllm_config.scheduler_config.max_num_seqs)
        self._width = int(vllm_config.model_config.max_model_len)
        self._state = device_or_state
        self._is_one = GUIDED in vllm_config.model_config.architectures
        """Whether the engine's model has the guide inside, and gives its values beside the logits."""
        self._policy_width = vllm_config.model_config.get_vocab_size() if self._is_one else 0
        self._requests: dict[int, Request] = {}
        self._rows: list[Request] = []
        """Rows that the value model follows, in the order of its slots."""
        self._steps: list[tuple[list[Request], list[int], list[Tensor | None]]] = []
        self._told: dict[int, Told] = {}
        self._guide: row_models.Guide | None = None
        self._guidance: Guidance | None = None
        self._stops: StopStrings | None = None
        self._end: int | None = None
        Draws.made = self

    def begin(self, guidance: Guidance | None, stops: StopStrings | None, end: int | None, pad_id: int) -> None:
        """Set how the next requests are drawn; earlier ones have ended.

        Args:
            guidance: Guides the policy; None for none.
            stops: Strings that end a completion.
            end: Token to take after such a string, which is no part of the completion; None goes on.
            pad_id: Padding token for short prompts.

        Raises:
            JobError: The value model cannot follow rows of any age.
        """
        self._requests, self._rows, self._steps, self._told = {}, [], [], {}
        self._guidance, self._stops, self._end = guidance, stops, end
        self._guide = None
        if guidance is not None and not self._is_one:
            self._guide = row_models.guide_of(guidance.model, self._slots, self._width, pad_id)
            if not self._guide.joins:
                kind = guidance.model.backbone.config.model_type
                raise JobError(
                    f"rows of a value model of the family {kind} begin together, and those of vLLM come and go; "
                    "use generation.backend=own"
                )

    def told(self, name: int) -> Told:
        """Return and forget what is known of a request."""
        self._flush()
        return self._told.pop(name, Told())

    # -- the interface of the first model runner -----------------------------------------------------------------

    def is_argmax_invariant(self) -> bool:
        """Return False: greedy requests are drawn here, too."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow rows that were removed, added and moved."""
        if batch_update is None:
            return
        at = self._requests
        for index in batch_update.removed:
            at.pop(index, None)
        for index, params, prompt, output in batch_update.added:
            at[index] = self._request(params, prompt, output)
        for one, other, how in batch_update.moved:
            moved, swapped = at.pop(one, None), at.pop(other, None)
            if moved is not None:
                at[other] = moved
            if how is MoveDirectionality.SWAP and swapped is not None:
                at[one] = swapped

    # -- the interface of the second one -------------------------------------------------------------------------

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Begin a request in a slot."""
        self._requests[req_idx] = self._request(sampling_params)
        return True

    # -- both ----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def apply(self, logits: Tensor, ctx: Any = None) -> Tensor:
        """Leave one token in every row whose text is read to its end.

        Args:
            logits: Shape [n, V], overwritten; values beside them are left out of what is returned.
            ctx: The rows of the step, with the second interface.

        Raises:
            JobError: There are not as many values beside the logits as the guide has.
        """
        values = None
        if self._is_one:
            logits, values = self._parted(logits)
        if ctx is None:
            places = sorted(self._requests)
            requests = [self._requests[place] for place in places]
            # A prompt of which a part is still to be read looks like any other: its token is not used.
            steps = [len(request.output or ()) for request in requests]
            texts: Texts = _Lists(requests, logits.device)
        else:
            slots, lengths = ctx.idx_mapping_np, ctx.seq_lens_upper_bound_np
            ready = lengths >= self._state.prefill_len.np[slots]
            places = [row for row in np.flatnonzero(ready).tolist() if int(slots[row]) in self._requests]
            requests = [self._requests[int(slots[row])] for row in places]
            prompts = self._state.prompt_len.np[slots[places]]
            steps = (lengths[places] - prompts).tolist()
            texts = _Device(requests, self._state, ctx, places, prompts)
        if not requests:
            return logits
        at = torch.tensor(places, device=logits.device)
        order = self._follow(requests, steps, texts)
        chosen = at if order is None else at[torch.tensor(order, device=at.device)]
        if order is not None:
            requests, steps = [requests[row] for row in order], [steps[row] for row in order]
        read, known = logits, values
        if order is not None or len(places) < len(logits):  # else these are all rows, and no copy is needed
            read = logits.index_select(0, chosen)
            known = None if values is None else values.index_select(0, chosen)
        tokens = self._take(read, self._guide if known is None else Computed(known), requests, steps)
        if self._stops is not None and self._end is not None:
            ended = self._stops.complete(texts.ends(self._stops.reach))
            ended = (ended if order is None else ended[order]) & (np.array(steps) > 0)
            tokens = tokens.masked_fill(torch.from_numpy(ended).to(tokens.device), self._end)
        logits[at] = -torch.inf
        logits[chosen, tokens] = 0.0
        return logits

    def _request(
        self, params: Any, prompt: Sequence[int] | None = None, output: list[int] | None = None
    ) -> Request:
        return Request.of(params, prompt, output)

    def _tilt(self, requests: Sequence[Request], device: torch.device) -> sampling.Tilt:
        assert self._guidance is not None
        return self._guidance.tilt

    def _parted(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and the values of rows that have both side by side."""
        assert self._guidance is not None
        model, width = self._guidance.model, self._policy_width
        if logits.shape[1] != width + model.head.out_features:
            raise JobError(
                f"vLLM gives {logits.shape[1]} numbers a row for a policy of {width} tokens and a value model "
                f"with {model.head.out_features} values; use generation.backend=own"
            )
        atoms, values = model.config.atoms, logits[:, width:]
        return logits[:, :width].contiguous(), values.unflatten(-1, (-1, atoms)) if atoms > 1 else values

    def _follow(self, requests: Sequence[Request], steps: Sequence[int], texts: Texts) -> list[int] | None:
        """Bring the value model to the ends of the rows; return the order in which it has them, None without one.

        A row that vLLM has preempted comes again as a new one. A row whose last token was not used, as vLLM had
        read a part of its prompt only, is read anew.
        """
        if self._guide is None:
            return None
        at = {request: row for row, request in enumerate(requests)}
        step = dict(zip(requests, steps, strict=True))
        goes_on = np.array([step.get(request, -1) == request.read + 1 for request in self._rows], np.bool_)
        if not goes_on.all():
            for request in self._rows:
                request.read += 0 if step.get(request, -1) == request.read + 1 else -1 - request.read
            left = np.flatnonzero(goes_on)
            kept = np.arange(len(left))
            kept[~goes_on[: len(left)]] = left[left >= len(left)]
            self._guide.keep(kept)
            self._rows = [self._rows[row] for row in kept.tolist()]
        if self._rows:
            self._guide.read(texts.last([at[request] for request in self._rows]))
        if new := [request for request in requests if request.read < 0]:
            self._enter(texts.whole([at[request] for request in new]))
            self._rows += new
        for request in self._rows:
            request.read = step[request]
        return [at[request] for request in self._rows]

    def _enter(self, texts: Sequence[list[int]]) -> None:
        """Make rows of texts; samples of one prompt that begin together share its reading."""
        assert self._guide is not None
        lengths = np.array([len(text) for text in texts], np.int64)
        different = {tuple(text): number for number, text in enumerate({tuple(text): None for text in texts})}
        alone = len(different) == len(texts)
        self._guide.stage([list(text) for text in different], at_once=alone)
        places = None
        if not alone:
            places = torch.tensor([different[tuple(text)] for text in texts], device=self._device_of_guide())
        self._guide.enter(places, lengths)
        self._guide.unstage()

    def _device_of_guide(self) -> torch.device:
        assert self._guidance is not None
        return self._guidance.model.device

    def _take(
        self,
        logits: Tensor,
        guide: row_models.Guide | None,
        requests: Sequence[Request],
        steps: Sequence[int],
    ) -> Tensor:
        """Take tokens, and note the numbers of the step."""
        guidance = self._guidance
        if guidance is not None and guidance.model.vocabulary < logits.shape[1]:
            logits = logits[:, : guidance.model.vocabulary]
        whole, logprobs = _distributions(logits, requests)
        is_whole = all(request.sampling.is_whole for request in requests)
        kl = None if is_whole else sampling.nucleus_kl(whole, logprobs)
        keys = np.array([request.key for request in requests], np.uint64)
        num_read = value = None
        if guide is not None:
            assert guidance is not None
            greedy, tilt = keys == sampling.LIKELIEST, self._tilt(requests, logits.device)
            others = np.where(greedy, keys, sampling.stream_beside(keys, OTHERS))
            draws = _draws([keys, others], steps, logits.device)
            drawn = None if greedy.all() else draws
            tokens, divergence = guided_step(guide, tilt, logprobs, drawn, some_likeliest=greedy.any())
            kl, num_read = divergence if kl is None else kl + divergence, guide.asked
            if isinstance(guide, Computed):
                value = row_models.candidate_values(guide.known, tokens[:, None]).squeeze(1)
        else:
            draws = _draws([keys], steps, logits.device)
            tokens = sampling.take_tokens(logprobs, draws[0], some_likeliest=True)
        taken = whole.gather(-1, tokens[:, None]).squeeze(-1)
        self._steps.append(([*requests], [*steps], [sampling.is_no_number(whole), kl, num_read, taken, value]))
        if len(self._steps) >= FLUSH:
            self._flush()
        return tokens

    def _flush(self) -> None:
        for requests, steps, parts in self._steps:
            lost, kl, num_read, taken, value = ([] if part is None else part.tolist() for part in parts)
            for row, (request, step) in enumerate(zip(requests, steps, strict=True)):
                if request.name is None:
                    continue
                told = self._told.setdefault(request.name, Told())
                told.logprobs[step] = taken[row]
                if value:
                    told.values[step] = value[row]
                told.lost.pop(step, None)
                if lost[row]:
                    told.lost[step] = "policy"
                elif kl:
                    told.kl[step] = kl[row]
                    if np.isnan(kl[row]):
                        told.lost[step] = "value model"
                if num_read:
                    told.num_read[step] = num_read[row]
        self._steps = []


def _distributions(logits: Tensor, requests: Sequence[Request]) -> tuple[Tensor, Tensor]:
    """Return the whole distributions of rows and those to draw from, as log-probabilities of shape [n, V]."""
    kinds = dict.fromkeys(request.sampling for request in requests)
    if len(kinds) == 1:
        (kind,) = kinds
        whole = sampling.policy_logprobs(logits, kind.temperature)
        return whole, sampling.cut(whole, kind)
    whole, restricted = (
        torch.empty_like(logits, dtype=torch.float32),
        torch.empty_like(logits, dtype=torch.float32),
    )
    for kind in kinds:
        rows = torch.tensor([request.sampling == kind for request in requests], device=logits.device)
        whole[rows] = sampling.policy_logprobs(logits[rows], kind.temperature)
        restricted[rows] = sampling.cut(whole[rows], kind)
    return whole, restricted


def _draws(streams: Sequence[sampling.Keys], steps: Sequence[int], device: torch.device) -> Tensor:
    """Return the draws of rows at their steps, shape [streams, n], float64."""
    at = np.array(steps, np.int64)
    return torch.from_numpy(np.stack([sampling.uniforms_at(keys, at) for keys in streams])).to(device)


@dataclass
class _Lists:
    """Tokens of rows in lists."""

    requests: Sequence[Request]
    device: torch.device

    def whole(self, rows: Sequence[int]) -> list[list[int]]:
        return [[*(self.requests[row].prompt or ()), *(self.requests[row].output or ())] for row in rows]

    def last(self, rows: Sequence[int]) -> Tensor:
        return torch.tensor([(self.requests[row].output or [0])[-1] for row in rows], device=self.device)

    def ends(self, reach: int) -> NDArray[np.int64]:
        table = np.full((len(self.requests), reach), NOTHING, np.int64)
        for row, request in enumerate(self.requests):
            prompt, output = request.prompt or (), (request.output or [])[-reach:]
            ids = [*prompt[len(prompt) - request.begun :], *output][-reach:]
            table[row, reach - len(ids) :] = ids
        return table


@dataclass
class _Device:
    """Tokens of rows on the device."""

    requests: Sequence[Request]
    state: Any
    ctx: Any
    rows: Sequence[int]
    """Rows of the step."""
    prompts: NDArray[np.integer]
    """Lengths of their prompts."""

    def whole(self, rows: Sequence[int]) -> list[list[int]]:
        at = [self.rows[row] for row in rows]
        lengths: Mapping[int, Any] = self.ctx.seq_lens_upper_bound_np
        return [self._ids(int(self.ctx.idx_mapping_np[row]), int(lengths[row])) for row in at]

    def _ids(self, slot: int, length: int) -> list[int]:
        ids: list[int] = self.state.all_token_ids.gpu[slot, :length].tolist()
        return ids

    def last(self, rows: Sequence[int]) -> Tensor:
        at = torch.tensor([self.rows[row] for row in rows], device=self.ctx.input_ids.device)
        ids: Tensor = self.ctx.input_ids[at].long()
        return ids

    def ends(self, reach: int) -> NDArray[np.int64]:
        ids = self.state.all_token_ids.gpu
        slots, lengths = self.ctx.idx_mapping_np[self.rows], self.ctx.seq_lens_upper_bound_np[self.rows]
        places = np.asarray(lengths)[:, None] + np.arange(-reach, 0)
        first = np.asarray(self.prompts) - [request.begun for request in self.requests]
        at = [torch.from_numpy(part).to(ids.device) for part in (np.asarray(slots)[:, None], places.clip(0))]
        table: NDArray[np.int64] = np.where(places < first[:, None], NOTHING, ids[at[0], at[1]].cpu().numpy())
        return table
