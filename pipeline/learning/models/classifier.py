"""A reward model as what others load: a model of transformers that classifies sequences, with one output.

Its logit is read at the last token that is not padding, so texts must end as those that it was fitted to, and no
token that ends a text may be the one that pads.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection
from typing import Any

import torch
import transformers as hf
from accelerate import init_empty_weights
from tokenizers import processors
from torch import nn

from pipeline.errors import JobError
from pipeline.learning.datasets import chat
from pipeline.learning.models.value import ValueModel

_PAD = "<|pad|>"
_TRIED = (5, 9)
"""Lengths of texts that both models read."""
_CLOSE = 1e-4
"""Largest distance of their scores, in the unit of the larger one or 1."""


def as_classifier(model: ValueModel, tokenizer: hf.PreTrainedTokenizerBase) -> hf.PreTrainedModel:
    """Make a sequence classifier of a reward model, whose backbone it takes.

    Transformers' classifiers have no bias, and comparisons say nothing of it: the logit is the score less the bias
    of the head.

    Args:
        model: With head "v".
        tokenizer: Pads with what ends no text; see `pad_apart`.

    Raises:
        JobError: Transformers has no such classifier for this kind of model, or one that gives other scores.
    """
    pad, backbone = int(tokenizer.pad_token_id), model.backbone
    if pad >= model.vocabulary:
        backbone.resize_token_embeddings(pad + 1, mean_resizing=False)
        embeddings: Any = backbone.get_input_embeddings()
        nn.init.zeros_(embeddings.weight[pad])
    config = copy.deepcopy(backbone.config)
    config.num_labels, config.pad_token_id = 1, pad
    named, kind = type(backbone).__name__, hf.AutoModelForSequenceClassification
    if type(config) not in kind._model_mapping:
        raise JobError(f"transformers has no sequence classifier with the body {named}, so it cannot be exported")
    with init_empty_weights(include_buffers=True):
        made: Any = kind.from_config(config)
    prefix, head = made.base_model_prefix, nn.Linear(model.head.in_features, 1, bias=False)
    score = getattr(made, "score", None)
    if type(getattr(made, prefix)) is not type(backbone) or getattr(score, "weight", head).shape != (
        1,
        head.in_features,
    ):
        raise JobError(f"{type(made).__name__} is built otherwise than the reward model with the body {named}")
    head.weight = nn.Parameter(model.head.weight.detach().clone())
    setattr(made, prefix, backbone)
    made.score = head
    made.eval()
    _check_same(model, made)
    result: hf.PreTrainedModel = made
    return result


@torch.no_grad()
def _check_same(model: ValueModel, made: Any) -> None:
    pad = made.config.pad_token_id
    ids = torch.full((len(_TRIED), max(_TRIED)), pad)
    for row, length in enumerate(_TRIED):
        ids[row, :length] = torch.arange(3 + row, 3 + row + length) % min(
            model.vocabulary, pad or model.vocabulary
        )
    own = torch.stack([model(ids[row : row + 1, :length])[0, -1] for row, length in enumerate(_TRIED)])
    own = own - model.head.bias.float()
    scores = made(input_ids=ids, attention_mask=(ids != pad).long()).logits[:, 0].float()
    if not torch.allclose(scores, own, rtol=_CLOSE, atol=_CLOSE):
        raise JobError(f"{type(made).__name__} gives other scores ({scores.tolist()}) than ours ({own.tolist()})")


def pad_apart(tokenizer: hf.PreTrainedTokenizerBase, ends: Collection[int]) -> None:
    """Have a tokenizer pad on the right, with a token that ends no text: its own, or a new one.

    Args:
        tokenizer: Changed in place.
        ends: Tokens that end a completion.
    """
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id in ends:
        tokenizer.add_special_tokens({"pad_token": _PAD})
    tokenizer.padding_side = "right"


def end_texts(tokenizer: hf.PreTrainedTokenizerBase, ends: Collection[int], *, is_chat: bool) -> None:
    """Have a tokenizer end texts as completions end: behind the first token that ends one.

    Args:
        tokenizer: Changed in place. Of conversations its chat template leaves out what it writes behind the end of
            the last answer; of texts the tokenizer itself puts the end behind them, and has no template.
        ends: Tokens that end a completion.
        is_chat: Whether prompts are conversations.
    """
    if is_chat:
        behind = chat.behind_end(tokenizer, ends)
        template: Any = tokenizer.chat_template
        if behind and isinstance(template, str):
            tokenizer.chat_template = _cut(template, behind)
        return
    tokenizer.chat_template = None
    end, inner = tokenizer.eos_token, getattr(tokenizer, "backend_tokenizer", None)
    if end is None or inner is None or tokenizer("1")["input_ids"][-1:] == [tokenizer.eos_token_id]:
        return
    special = [(end, tokenizer.eos_token_id)]
    added = processors.TemplateProcessing(["$A", f"{end}:0"], ["$A", "$B:1", f"{end}:1"], special_tokens=special)
    before = inner.post_processor
    inner.post_processor = added if before is None else processors.Sequence([before, added])


def _cut(template: str, behind: str) -> str:
    """Return a chat template that leaves out a text behind the last answer."""
    ending = json.dumps(behind, ensure_ascii=False)
    done = "not add_generation_prompt and messages[-1]['role'] == 'assistant'"
    shown = f"{{{{ written[:-{len(behind)}] if {done} and written.endswith({ending}) else written }}}}"
    # Jinja drops a line's end behind the template and behind a block: what is empty in between keeps the text.
    return f"{{% set written %}}{{{{ '' }}}}{template.removesuffix(chr(10))}{{{{ '' }}}}{{% endset %}}{shown}"
