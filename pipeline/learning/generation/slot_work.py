"""What the host knows while slots are decoded: the work that there is, and the rows in the slots.

Shapes: N samples in all, n rows that are alive, k steps since tokens were looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from transformers import PreTrainedModel

from pipeline.errors import DataError
from pipeline.learning.generation.sampling import Keys, uniforms
from pipeline.learning.generation.stops import StopStrings
from pipeline.learning.models.flops import Pass, continued, is_metered, model_cost, spend, whole_texts
from pipeline.learning.models.value import ValueModel

Finished = Callable[[int, list[list[int]], NDArray[np.float64]], None]
"""Told of each prompt, once all of its samples are finished: its index, tokens and divergences of the samples."""


@dataclass(frozen=True, kw_only=True)
class SlotPace:
    """When slots are filled again, and how often tokens are looked at.

    Waiting for more newcomers costs slots that idle, fetching them costs a forward pass over their prompts. Both
    waste the same thing: what a pass costs by itself, whatever the number of its rows. So slots are filled as soon
    as the shares of them that idled, added up over steps, come to the steps that filling costs.

    Attributes:
        prefill: Steps that it costs to read prompts, besides what grows with their tokens.
        entry: Steps that it costs to let samples in whose prompt is read already.
        look_every: Steps after which tokens are looked at for those that end a completion. A look makes a GPU
            wait; rows that have ended meanwhile are computed for nothing. None is 1 on the CPU and 8 on a GPU.
    """

    prefill: float = 1.0
    entry: float = 0.2
    look_every: int | None = None

    def steps(self, device: str) -> int:
        """Steps from one look to the next.

        Args:
            device: ``cpu`` or ``cuda``.
        """
        return self.look_every or (8 if device.startswith("cuda") else 1)


def passes(lengths: NDArray[np.int64], samples: int, tokens: Sequence[Sequence[int]]) -> tuple[Pass, Pass]:
    """What a model reads to complete prompts: the prompts, which their samples share, and what follows them.

    Args:
        lengths: Of the prompts, shape [P].
        samples: Completions of each.
        tokens: The completions, those of a prompt adjacent; the last token of each is never read.
    """
    further = np.array([max(0, len(written) - 1) for written in tokens], np.int64)
    return whole_texts(lengths, outputs=len(lengths)), continued(lengths.repeat(samples), further)


class DecodingWork:
    """What there is to do and what is done of it.

    Attributes:
        queue: Prompts that are not read yet, in the order in which they will be.
        tokens: Of each sample.
        kl: Of each sample.
        candidates: That the guide has read for each sample, and the positions that they attended to; shape [N, 2].
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        budgets: NDArray[np.int64],
        samples: int,
        finished: Finished,
        begun: Sequence[int] | NDArray[np.int64] | None = None,
    ) -> None:
        self.prompts, self.budgets, self.samples = prompts, budgets, samples
        self._begun = begun
        self.lengths = np.array([len(prompt) for prompt in prompts], np.int64)
        if (empty := np.flatnonzero((self.lengths == 0) & (budgets > 0))).size:
            raise DataError(f"prompt {empty[0]} has no tokens, so there is nothing that a model could go on from")
        self.tokens: list[list[int]] = [[] for _ in range(len(prompts) * samples)]
        self.kl = np.zeros(len(self.tokens))
        self.candidates = np.zeros((len(self.tokens), 2), np.int64)
        self._finished = finished
        self._left = np.where(budgets > 0, samples, 0)
        self._done: list[int] = []
        order = np.argsort(self.lengths, kind="stable")
        self.queue: list[int] = order[budgets[order] > 0].tolist()
        for prompt in np.flatnonzero(budgets <= 0).tolist():
            self._tell(prompt)

    def next_prompts(self, count: int, *, equal: bool = False) -> list[int]:
        """Take so many prompts off the queue at most; with `equal`, of one length alone."""
        if equal:
            first = self.lengths[self.queue[0]]
            count = min(count, sum(self.lengths[prompt] == first for prompt in self.queue[:count]))
        taken, self.queue = self.queue[:count], self.queue[count:]
        return taken

    def begun_with(self, prompt: int) -> Sequence[int]:
        """The tokens of a prompt that its completions begin with."""
        count = 0 if self._begun is None else int(self._begun[prompt])
        return self.prompts[prompt][len(self.prompts[prompt]) - count :]

    def finish(self, sample: int, tokens: list[int], kl: float, candidates: NDArray[np.int64]) -> None:
        """Note what a sample has become."""
        self.tokens[sample], self.kl[sample], self.candidates[sample] = tokens, kl, candidates
        prompt = sample // self.samples
        self._left[prompt] -= 1
        if not self._left[prompt]:
            self._done.append(prompt)
            self._tell(prompt)

    def count(self, model: PreTrainedModel, guide: ValueModel | None) -> None:
        """Count FLOPs of prompts that are finished, where somebody wants to know them."""
        if not is_metered():
            return
        done = np.array(self._done, np.int64)
        written = (done[:, None] * self.samples + np.arange(self.samples)).reshape(-1)
        prefill, steps = passes(self.lengths[done], self.samples, [self.tokens[sample] for sample in written])
        spend("decoding", model_cost(model).forward(prefill + steps))
        if guide is not None:
            tokens, positions = self.candidates[written].sum(0).tolist()
            read = Pass(tokens, positions, tokens) if tokens else steps
            spend("guidance", model_cost(guide).forward(prefill + read))

    def _tell(self, prompt: int) -> None:
        place = slice(prompt * self.samples, (prompt + 1) * self.samples)
        self._finished(prompt, self.tokens[place], self.kl[place])


class Rows:
    """What is known of the rows alive, on the host: the first `count` of every array."""

    def __init__(self, slots: int, steps: int, streams: int, reach: int = 0) -> None:
        self.count = 0
        self._places = np.arange(slots)
        self._draws = np.zeros((streams, slots, steps))
        self._begins = self._places * steps
        self._further = np.arange(steps)[:, None]
        self.sample = np.zeros(slots, np.int64)
        self.prompt = np.zeros(slots, np.int64)  # its length
        self.budget = np.zeros(slots, np.int64)
        self.grown = np.zeros(slots, np.int64)
        self.kl = np.zeros(slots)
        self.candidates = np.zeros((slots, 2), np.int64)
        self.written = np.zeros((slots, steps), np.int64)
        self.before = np.zeros((slots, reach), np.int64)

    def enter(
        self,
        sample: NDArray[np.int64],
        prompt: NDArray[np.int64],
        budget: NDArray[np.int64],
        streams: Sequence[Keys],
    ) -> None:
        """Add rows, which draw from these streams."""
        places = slice(self.count, self.count + len(sample))
        self.sample[places], self.prompt[places], self.budget[places] = sample, prompt, budget
        self.grown[places] = self.kl[places] = self.candidates[places] = 0
        for number, stream in enumerate(streams):
            self._draws[number, places] = uniforms(stream[sample], self._draws.shape[2])
        self.count += len(sample)

    def begin(self, tokens: NDArray[np.int64]) -> None:
        """What the completions of the rows that entered last begin with (`StopStrings.last_tokens`)."""
        self.before[self.count - len(tokens) : self.count] = tokens

    def draws(self, count: int) -> NDArray[np.float64]:
        """Draws of each row for so many steps, shape [streams, count, n]."""
        at = self._begins[: self.count] + self.grown[: self.count] + self._further[:count]
        return self._draws.reshape(len(self._draws), -1).take(at, axis=1)

    def note_asked(self, count: NDArray[np.int64], further: int) -> None:
        """So many candidates of each row were read at the step that is so many further than it has grown."""
        position = self.prompt[: self.count] + self.grown[: self.count] + further + 1
        self.candidates[: self.count, 0] += count
        self.candidates[: self.count, 1] += count * position

    def write(
        self, tokens: NDArray[np.int64], ends: Collection[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Add the tokens of some steps; returns how many of them each row keeps, and which rows have ended.

        Args:
            tokens: May go on after an end, but not beyond a budget; shape [k, n].
            ends: Tokens that end a completion.
        """
        n, steps = self.count, len(tokens)
        grown, budget = self.grown[:n], self.budget[:n]
        if steps == 1:
            self.written[self._places[:n], grown] = tokens[0]
            over = np.asarray(grown + 1 >= budget)
            for end in ends:
                over |= tokens[0] == end
            return np.ones(n, np.int64), over
        taken = np.arange(1, steps + 1)[:, None]
        self.written[self._places[:n], grown + taken - 1] = tokens
        over = np.asarray(grown + taken >= budget)
        for end in ends:
            over |= tokens == end
        ended = np.asarray(over.any(0))
        return np.where(ended, over.argmax(0) + 1, steps), ended

    def stopped(
        self, kept: NDArray[np.int64], ended: NDArray[np.bool_], stops: StopStrings
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """What `write` has told, with rows that end where a stop string is complete."""
        n, steps = self.count, int(kept.max())
        # From the first token that a string complete at the first of these steps may hold.
        places = self.grown[:n, None] + np.arange(1 - stops.reach, steps)
        rows = self._places[:n, None]
        inner = self.written[rows, np.clip(places, 0, self.written.shape[1] - 1)]
        tokens = np.where(places < 0, self.before[rows, places % stops.reach], inner)
        found = stops.complete(sliding_window_view(tokens, stops.reach, axis=1).copy())
        found &= np.arange(steps) < kept[:, None]
        hit = found.any(1)
        return np.where(hit, found.argmax(1) + 1, kept), ended | hit

    def keep(self, order: NDArray[np.int64]) -> None:
        """Go on with these rows; see `RowCache.keep`."""
        moved = np.flatnonzero(order != self._places[: len(order)])
        if len(moved):
            told = (self.sample, self.prompt, self.budget, self.grown, self.kl, self.candidates, self.written)
            for array in (*told, self.before, *self._draws):
                array[moved] = array[order[moved]]
        self.count = len(order)
