"""Search among blocks as a policy: draw a few tokens of several candidates, choose among them, go on from these.

Value-guided search (Wang et al., arXiv 2505.17373, algorithm 1) keeps several beams. With one it is blockwise best
of n (Mudgal et al., arXiv 2310.17022, section 3.2). As in the code of the former, beams that have ended stay, and
the candidates of all other beams of an answer compete with each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import JobError
from pipeline.learning.generation import decode, sampling
from pipeline.learning.generation.policy import TextPolicy

Texts = Sequence[Sequence[int]]
"""Token ids of several texts."""


@dataclass(frozen=True)
class _Part:
    """A beginning of an answer, and the KL divergence of its nuclei from the whole reference."""

    tokens: tuple[int, ...] = ()
    kl: float = 0.0
    blocks: int = 0
    value: float = math.nan
    has_ended: bool = False


class BlockSearchPolicy(TextPolicy):
    """Draws candidates block by block, and goes on from those that are chosen.

    Attributes:
        count: Candidates for each block, n; a multiple of `beams`.
        beams: Number of candidates to go on from.
        block: Tokens of a block.
        values: Given prompts and beginnings of their completions, returns the values of these, shape [N].
        choose: Given beginnings, their values and a number, returns the places of so many to keep.
    """

    count: int = 1
    beams: int = 1
    block: int = 1
    values: Callable[[Texts, Texts], NDArray[np.float64]]
    choose: Callable[[Texts, NDArray[np.float64], int], NDArray[np.int64]]

    def complete(
        self,
        prompts: Texts,
        keys: sampling.Keys | None,
        *,
        samples: int = 1,
        budgets: NDArray[np.int64] | None = None,
        on_batch: Callable[[int, int], None] | None = None,
    ) -> decode.Decoded:
        """Complete prompts; see `TextPolicy.complete`.

        The KL divergence is an upper bound: `bound`, and what nuclei add along the answer, as for `BestOfNPolicy`.
        Candidate i draws its token of a step by that step's draw of stream i, whatever it goes on from. So one
        candidate is the reference's completion, and with a single block answers are those of best of n.

        Raises:
            JobError: `choose` returned something else than different places.
        """
        if keys is None:
            raise ValueError("the likeliest completion is the same however often it is drawn")
        each, answers = self.count // self.beams, len(prompts) * samples
        heads = [prompt for prompt in prompts for _ in range(samples * self.beams)]  # of every beam
        limits = self._limits(prompts, budgets).repeat(samples * self.beams)
        streams = sampling.split_keys(keys.reshape(-1), self.count).reshape(-1, each)
        most = -(-int(limits.max(initial=0)) // self.block)
        parts, growing, number, spent = [_Part()] * len(heads), list(range(len(heads))), 0, 0

        def told(_: int, tokens: int) -> None:
            if on_batch is not None:
                on_batch(answers * number // most, spent + tokens)

        while growing:
            texts = [[*heads[at], *parts[at].tokens] for at in growing]
            room = limits[growing] - number * self.block
            own = sampling.keys_after(streams[growing], number * self.block)
            drawn = self._block(texts, room, own, told, 1 if number else samples * self.beams)
            spent += sum(map(len, drawn.tokens))
            number += 1
            begun = [(parts[at], int(left)) for at, left in zip(growing, room, strict=True) for _ in range(each)]
            found = [self._grown(*of, *more) for of, *more in zip(begun, drawn.tokens, drawn.kl, strict=True)]
            if each > 1:
                found = self._valued([heads[at] for at in growing for _ in range(each)], found)
            before = 0
            for _, beams in groupby(growing, lambda at: at // self.beams):
                places = list(beams)
                kept = self._chosen(found[before : before + each * len(places)], len(places))
                before += each * len(places)
                for at, part in zip(places, kept, strict=True):
                    parts[at] = part
            growing = [at for at in growing if not parts[at].has_ended]
        if self.beams > 1:
            parts = self._valued(heads, parts) if each == 1 else parts
            parts = [self._chosen(parts[at : at + self.beams], 1)[0] for at in range(0, len(parts), self.beams)]
        if on_batch is not None:
            on_batch(answers, spent)
        kl = [part.kl + self.bound(part.blocks) for part in parts]
        return decode.Decoded([list(part.tokens) for part in parts], np.array(kl, np.float64))

    def bound(self, blocks: int) -> float:
        """Return how much the choice among candidates adds at most to the KL divergence of an answer, in nats.

        Its mean over answers bounds the divergence from the reference as it is sampled. The first block is one of
        n draws, which adds at most ``log n - (n - 1) / n`` by any choice (Beirami et al., arXiv 2401.01879). With
        one beam so does each further block, given those before it. With several beams an answer is one of the
        ends of a tree of blocks, with n first ones and m = n / beams after each. Below one first block, an answer
        is expected at no more ends than m ** (blocks - 1) times the reference's probability of it. So each
        further block adds at most ``log m``.
        """
        first = math.log(self.count) - (self.count - 1) / self.count
        return first + (blocks - 1) * (first if self.beams == 1 else math.log(self.count // self.beams))

    def _block(
        self,
        texts: Texts,
        room: NDArray[np.int64],
        streams: sampling.Keys,
        told: Callable[[int, int], None],
        same: int,
    ) -> decode.Decoded:
        """Draw a block after texts, by each of their streams; every `same` texts are one, which is read once."""
        texts, room = texts[::same], room[::same]
        begun = np.minimum(self.limit - room, [len(text) for text in texts])
        budgets = np.minimum(room, self.block)
        return self._complete(
            decode.DecodingWork(texts, budgets, streams.size // len(texts), begun, told), streams
        )

    def _grown(self, part: _Part, room: int, tokens: Sequence[int], kl: float) -> _Part:
        whole = (*part.tokens, *tokens)
        ended = len(tokens) < self.block or len(tokens) == room or self.ended(whole)
        return _Part(whole, part.kl + kl, part.blocks + 1, has_ended=ended)

    def _valued(self, prompts: Texts, parts: Sequence[_Part]) -> list[_Part]:
        values = self.values(prompts, [part.tokens for part in parts]).tolist()
        return [replace(part, value=value) for part, value in zip(parts, values, strict=True)]

    def _chosen(self, parts: Sequence[_Part], count: int) -> Sequence[_Part]:
        if len(parts) == count:
            return parts
        values = np.array([part.value for part in parts])
        chosen = np.asarray(self.choose([part.tokens for part in parts], values, count)).tolist()
        if len(chosen) != count or len({*chosen} & {*range(len(parts))}) != count:
            allowed = f"{count} different ones of 0 to {len(parts) - 1}"
            raise JobError(f"`choose` returned the places {chosen}; it must return {allowed}")
        return [parts[place] for place in chosen]
