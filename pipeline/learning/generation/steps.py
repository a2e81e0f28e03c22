"""From what a model computed at the ends of rows to their next tokens.

Shapes: n rows that are alive, V tokens of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from pipeline.learning.generation.guided_step import guided_step
from pipeline.learning.generation.guides import Guide
from pipeline.learning.generation.sampling import (
    is_no_number,
    nucleus,
    nucleus_kl,
    policy_logprobs,
    take_tokens,
)
from pipeline.learning.generation.tilt import Tilt


class Taken(NamedTuple):
    """What a step took.

    Attributes:
        tokens: Of each row, shape [n].
        lost: Rows whose distribution is none, shape [n].
        kl: What the step adds to their divergence, shape [n]; None where that is 0.
        asked: How many candidates the guide read, shape [n]; None where it reads each token once.
    """

    tokens: Tensor
    lost: Tensor
    kl: Tensor | None
    asked: Tensor | None


@dataclass(frozen=True)
class Taking:
    """How tokens are taken.

    Attributes:
        temperature: See `DecodeSettings`.
        top_p: Likewise.
        guide: Knows the values; None guides by nothing.
        tilt: What they do; None without a guide.
        some_likeliest: Whether there may be rows without draws beside others that have some.
        vocabulary: Tokens that may be taken, the first ones; None for all that the policy has logits of. A value
            model may have fewer of those that fill up an embedding and stand for no text.
    """

    temperature: float
    top_p: float
    guide: Guide | None
    tilt: Tilt | None
    some_likeliest: bool
    vocabulary: int | None = None

    def __call__(self, logits: Tensor, draws: Tensor | None) -> Taken:
        """The next token of every row.

        Args:
            logits: Of the policy, shape [n, V].
            draws: Shape [streams, n]; None takes the likeliest.
        """
        if self.vocabulary is not None and self.vocabulary < logits.shape[1]:
            logits = logits[:, : self.vocabulary]
        whole = policy_logprobs(logits, self.temperature)
        logprobs = nucleus(whole, self.top_p)
        kl = nucleus_kl(whole, logprobs) if self.top_p < 1.0 else None
        asked = None
        if self.guide is not None:
            assert self.tilt is not None
            tokens, divergence = guided_step(self.guide, self.tilt, logprobs, draws)
            kl = divergence if kl is None else kl + divergence
            asked = self.guide.asked
        else:
            tokens = logprobs.argmax(-1) if draws is None else take_tokens(logprobs, draws[0], self.some_likeliest)
        return Taken(tokens, is_no_number(whole), kl, asked)
