"""Continuous batching of transformers, with our draws: a place that becomes free goes to the next sample at once.

What transformers samples from is what a processor of logits leaves, and this one leaves the token that we draw. So
a sample's tokens follow from its own stream of draws, as they do with our own decoder, and only rounding differs.
All requests wait before the first step, so what is computed together follows from the work alone.

Shapes: N samples in all, B rows of a step, V tokens of the vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList, PreTrainedModel
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessorList

from pipeline.errors import JobError
from pipeline.learning.generation.backends.counting import count_decoding
from pipeline.learning.generation.decode import Decoded, DecodeSettings
from pipeline.learning.generation.sampling import (
    Keys,
    is_no_number,
    no_number,
    nucleus,
    nucleus_kl,
    policy_logprobs,
    take_tokens,
    uniforms_at,
)
from pipeline.learning.models.batch_size import BatchSizes
from pipeline.learning.models.families import why_not_paged

PAGE = 32
"""Tokens of a page; those of FlashAttention have 256 in all of its versions."""
FLASH_PAGE = 256
QUEUE, TURNS = 4096, 8
"""Samples that wait at once, or batches of them: at each step all that wait are looked through."""
READ_AT_ONCE = 1024
"""Tokens of prompts in one step, where that is more than a token for each row."""
_LOGGER = "ContinuousBatchingLogger"
_REMEDY = "Try a lower generation.max_new_tokens, generation.backend=own, or system.dtype=bfloat16."


class PagedBackend:
    """A model, completed by continuous batching."""

    def __init__(self, model: PreTrainedModel, settings: DecodeSettings, sizes: BatchSizes) -> None:
        """Prepare.

        Raises:
            JobError: Models of this kind are not decoded rightly there.
        """
        if why := why_not_paged(model.config.to_dict()):
            raise JobError(f"generation.backend=transformers: {why}")
        self._model, self._settings, self._sizes = model, settings, sizes

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        keys: Keys | None,
        *,
        samples: int,
        budgets: NDArray[np.int64],
        begun: NDArray[np.int64],
        on_batch: Callable[[int, int], None] | None,
    ) -> Decoded:
        """Complete prompts, shortest first.

        When memory runs out, fewer rows are decoded at once. What was finished before is kept.
        """
        lengths = np.array([len(prompt) for prompt in prompts], np.int64)
        draws = Draws(
            self._settings,
            lengths.repeat(samples),
            None if keys is None else keys.reshape(-1),
            begun.repeat(samples),
        )
        tokens: dict[int, list[int]] = {}
        open_ones = [index for index in np.argsort(lengths, kind="stable").tolist() if budgets[index] > 0]
        waiting = [index * samples + sample for index in open_ones for sample in range(samples)]
        closed = len(prompts) * samples - len(waiting)
        batch = self._sizes.begin(
            "generate by transformers",
            min(self._settings.batch_size, max(1, len(waiting))),
            length=int((lengths + budgets).max(initial=1)),
            remedy=_REMEDY,
        )

        def some() -> None:
            left = [place for place in waiting if place not in tokens]
            left = left[: max(QUEUE, TURNS * batch.size)]
            draws.begin(left)
            asked = {place: (prompts[place // samples], int(budgets[place // samples])) for place in left}
            generated = sum(map(len, tokens.values()))
            with closing(self._decoded(asked, draws, min(batch.size, len(left)))) as decoded:
                for place, written in decoded:
                    prompt, own = prompts[place // samples], int(begun[place // samples])
                    stops = self._settings.stops  # an end that was drawn behind one is there still
                    tokens[place] = stops.until(prompt[len(prompt) - own :], written) if stops else written
                    generated += len(written)
                    if on_batch is not None:
                        on_batch(closed + len(tokens), generated)

        while len(tokens) < len(waiting):
            batch.run(some, used=lambda: min(batch.size, len(waiting) - len(tokens)))
            if bool(draws.lost[:-1].any()):
                raise no_number("model")
        found = [tokens.get(place, []) for place in range(len(prompts) * samples)]
        count_decoding(self._model, prompts, samples, found)
        return Decoded(found, draws.kl[:-1].cpu().numpy())

    def _decoded(
        self, asked: dict[int, tuple[Sequence[int], int]], draws: Draws, rows: int
    ) -> Generator[tuple[int, list[int]]]:
        """Samples that are finished, as they are."""
        with _quiet(), self._manager(asked, draws, rows) as manager:
            for place, (prompt, budget) in asked.items():
                manager.add_request(list(prompt), request_id=str(place), max_new_tokens=budget, sample=place)
            manager.start()
            for _ in asked:
                result = None
                while result is None and manager.is_running():
                    result = manager.get_result(timeout=1.0)
                result = result or manager.get_result(timeout=0.0)
                if result is None or result.error is not None:
                    # Told once the thread has come to its end; only there is it known whether memory ran out.
                    manager.stop(hard_stop=True)
                    fatal = manager.background_thread_status.fatal_error
                    said = "it ended before its work did" if result is None else result.error
                    raise fatal or JobError(f"continuous batching of transformers: {said}")
                yield int(result.request_id), list(result.generated_tokens)

    @contextmanager
    def _manager(self, asked: dict[int, tuple[Sequence[int], int]], draws: Draws, rows: int) -> Iterator[Any]:
        """A manager that has not started, with room for some rows; the model is as it was afterwards."""
        settings = self._settings
        ends = [token for token in (settings.eos_id, *settings.further_end_ids) if token is not None]
        longest = max(len(prompt) + budget for prompt, budget in asked.values())
        widest = max(len(prompt) for prompt, _ in asked.values())
        page = FLASH_PAGE if "flash" in str(self._model.config._attn_implementation) else PAGE
        room = ContinuousBatchingConfig(
            page_size=page,
            num_blocks=rows * -(-longest // page) + 1,
            max_batch_tokens=max(rows, min(rows * widest, READ_AT_ONCE)),
            max_requests_per_batch=rows,
            safety_margin=0.0,
            # What is measured or chosen by itself would depend on the machine and on what else runs there.
            max_memory_percent=0.9,
            auto_switch_to_flash=False,
            use_async_batching=False,
            use_cuda_graph=False,
            seed=0,
        )
        greedily = GenerationConfig(do_sample=False, eos_token_id=ends or -1, pad_token_id=settings.pad_id)
        manager = self._model.init_continuous_batching(greedily, room)  # type: ignore[operator]
        manager.logit_processor = draws
        try:
            yield manager
        finally:
            if manager.is_running():
                manager.stop(hard_stop=True)
            manager.destroy()


class Draws(ContinuousBatchingLogitsProcessorList):
    """Leaves of every row's logits the token that its own stream draws.

    Attributes:
        kl: As `Decoded.kl`, shape [N + 1]; the last place is for rows that are none.
        lost: Which samples had a step whose logits were no numbers, shape [N + 1].
    """

    def __init__(
        self,
        settings: DecodeSettings,
        lengths: NDArray[np.int64],
        keys: Keys | None,
        begun: NDArray[np.int64],
    ) -> None:
        """Begin with nothing drawn.

        Args:
            settings: Temperature, nucleus, stop strings and device.
            lengths: Tokens of the prompt of each sample, shape [N].
            keys: Streams of draws, shape [N]; None takes the likeliest tokens.
            begun: Tokens of each prompt that its completion begins with, shape [N].
        """
        super().__init__(LogitsProcessorList())
        self._settings, self._lengths, self._keys, self._begun = settings, lengths, keys, begun
        self.kl = torch.zeros(len(lengths) + 1, dtype=torch.float64, device=settings.device)
        self.lost = torch.zeros(len(lengths) + 1, dtype=torch.bool, device=settings.device)
        self.do_processing = True
        # Rows of int32 that go along with a step: the number of the sample, and its draw in two halves.
        self.tensors_required = 3

    def begin(self, places: Sequence[int]) -> None:
        """Samples are about to be completed, from their start."""
        self.kl[list(places)] = 0

    def check_kwargs(self, kwargs: dict[str, Any]) -> None:
        """Requests have the number of their sample."""

    def fill_defaults(self, int32_tensor: Tensor) -> None:
        """What rows have that are none."""
        int32_tensor.zero_()
        int32_tensor[0] = len(self._lengths)

    def prepare_tensor_args(self, requests_in_batch: list[Any], arg_storage: Tensor) -> Tensor:
        """The sample and the draw of each row that gets a token in the coming step."""
        states = [request.state for request in requests_in_batch if request.has_new_token]
        samples = np.array([state.logit_processor_kwargs["sample"] for state in states], np.int64)
        read = np.array([state.position_offset for state in states], np.int64)
        draws = np.zeros(len(states))
        if self._keys is not None:
            draws = uniforms_at(self._keys[samples], read - self._lengths[samples])
        samples[self._stopped(states, samples)] = len(self._lengths)
        halves = torch.from_numpy(draws).view(torch.int32).reshape(-1, 2)
        columns = torch.cat([torch.from_numpy(samples).int()[:, None], halves], 1)
        arg_storage[:, : len(states)] = columns.T.to(arg_storage.device)
        return arg_storage

    def _stopped(self, states: Sequence[Any], samples: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which requests have completed a stop string: they end with this step, and its token is left out."""
        stops = self._settings.stops
        if stops is None:
            return np.zeros(len(states), np.bool_)
        completions = []
        for state, sample in zip(states, samples.tolist(), strict=True):
            ids = [*state.initial_tokens, *state.generated_tokens]
            completions.append(ids[self._lengths[sample] - self._begun[sample] :])
        found = stops.end(completions)
        for place in np.flatnonzero(found).tolist():
            states[place]._new_tokens_limit = states[place].generated_len()
        return found

    def __call__(self, input_ids: Tensor, scores: Tensor, logits_processor_args: Tensor) -> Tensor:  # noqa: ARG002
        """Draw.

        Args:
            input_ids: Not looked at.
            scores: Logits, shape [B, V].
            logits_processor_args: As prepared, shape [3, B].

        Returns:
            1 for the token that was drawn and 0 for all others, shape [B, V].
        """
        given = logits_processor_args[:, : len(scores)]
        whole = policy_logprobs(scores, self._settings.temperature)
        logprobs = nucleus(whole, self._settings.top_p)
        samples = given[0].long()
        self.lost[samples] |= is_no_number(whole)
        if self._settings.top_p < 1.0:
            self.kl.index_add_(0, samples, nucleus_kl(whole, logprobs))
        if self._keys is None:
            tokens = logprobs.argmax(-1)
        else:
            uniform = given[1:].T.contiguous().view(torch.float64)[:, 0]
            tokens = take_tokens(logprobs, uniform, some_likeliest=True)
        return torch.zeros_like(scores).scatter_(-1, tokens[:, None], 1.0)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from telling of an error that we handle or raise."""
    logger = logging.getLogger(_LOGGER)
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
