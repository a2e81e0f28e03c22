"""One guided step: candidates, a draw, the values that are asked for, and the token that is taken.

Shapes: B rows, V tokens of the vocabulary, K columns of candidates.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.learning.choices import Others
from pipeline.learning.generation import host
from pipeline.learning.generation.guides import Guide
from pipeline.learning.generation.tilt import (
    Candidates,
    Draw,
    Tilt,
    draw_columns,
    find_candidates,
    guided_logprobs,
    likeliest_columns,
    split_draw,
    step_kl,
)


def guided_step(guide: Guide, tilt: Tilt, logprobs: Tensor, draws: Tensor | None) -> tuple[Tensor, Tensor]:
    """Take one guided step.

    Args:
        guide: Knows the values.
        tilt: What they do to the reference.
        logprobs: The reference's, shape [B, V].
        draws: Shape [1 or 2, B], float64, see `decode._streams`; None takes the likeliest token.

    Returns:
        Tokens, shape [B], and the KL divergence of the step from `logprobs` in nats, shape [B].
    """
    candidates = find_candidates(logprobs, tilt, None if draws is None else draws[-1])
    draw = None if draws is None else split_draw(logprobs, candidates, draws[0], tilt)
    if candidates.alone:
        return _forced_step(guide, tilt, candidates, draw)
    asked, valid, outside = _asked(guide, candidates, draw)
    count = None
    if not guide.looks_up and not host.may_ask(valid) and not host.is_silent():
        # The one time in a step that a GPU is waited for: a value model is dear, and reads what is asked alone.
        width, count = torch.stack([candidates.valid.sum(-1).amax(), valid.sum()]).tolist()
        if not candidates.pooled:
            candidates, asked, valid = candidates.first(width), asked[:, : width + 1], valid[:, : width + 1]
        if candidates.alone:
            return _forced_step(guide, tilt, candidates, draw)
    values = guide.values(asked, valid, count)
    guided = guided_logprobs(candidates, values[:, : candidates.ids.shape[1]], tilt)
    if draw is None:
        columns, divergence = likeliest_columns(logprobs, candidates, guided), step_kl(candidates, guided)
    else:
        guided = guided.double()
        weights = guided.exp()
        divergence, columns = step_kl(candidates, guided, weights), draw_columns(weights, draw)
    tokens = candidates.ids.gather(-1, columns[:, None]).squeeze(-1)
    if draw is not None and draw.outside is not None:
        tokens = draw.or_else(tokens)
        columns = columns if outside is None else torch.where(draw.outside, outside, columns)
    guide.advance(tokens, columns)
    return tokens, divergence


def _asked(guide: Guide, candidates: Candidates, draw: Draw | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """What the guide is asked for: the candidates, and tokens that are none and are taken nevertheless.

    Returns:
        Token ids and which of them are asked for, shape [B, K or K + 1], and for rows that take such a token its
        column, shape [B].
    """
    asked, valid = candidates.ids, candidates.valid
    if draw is None or draw.outside is None:
        return asked, valid, None
    # With a head "q" too, where nothing is asked for: kernels round by the layout of what they read.
    wider = host.has_any(draw.outside & valid[:, -1]) if host.may_ask(valid) else not guide.looks_up
    if wider:
        asked, valid = F.pad(asked, (0, 1)), F.pad(valid, (0, 1))
    elif not guide.looks_up:
        asked, valid = asked.clone(), valid.clone()
    if guide.looks_up:
        return asked, valid, None
    # The value model has to read the token that such a row takes: behind the candidates, or instead of a single
    # one, whose value changes nothing.
    count = candidates.valid.sum(-1)
    outside = count * (draw.outside & (count > 1))
    asked.scatter_(1, outside[:, None], draw.or_else(asked[:, 0])[:, None])
    return asked, valid.scatter_(1, outside[:, None], value=True), outside


def _forced_step(guide: Guide, tilt: Tilt, candidates: Candidates, draw: Draw | None) -> tuple[Tensor, Tensor]:
    """A step of which no row has a second candidate: the value of a single one changes nothing."""
    tokens, guided = candidates.ids[:, 0], candidates.logprobs
    if draw is not None:
        tokens = draw.or_else(tokens)
    if tilt.others is not Others.kept:
        guided = torch.zeros_like(guided)
    guide.defer(tokens)
    return tokens, step_kl(candidates, guided)
