"""A reward model: any sequence-classification model in a folder or on the hub, as TRL's `RewardTrainer` saves it.

Unlike function rewards it runs in the worker, on the worker's device, in batches of a size of its own: figures may
depend a little on what shares a batch, so the batches must not depend on how fast the rest of the run is set up.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor

from pipeline.errors import ConfigError
from pipeline.learning.datasets.chat import ARGUMENTS, as_turns, rendered, template_arguments
from pipeline.learning.datasets.files import is_hub_id
from pipeline.learning.datasets.prepared import unknown_token
from pipeline.learning.models.batch_size import BatchSizes
from pipeline.learning.models.flops import model_cost, spend, whole_texts
from pipeline.learning.models.kinds import RewardModelSettings, check_complete
from pipeline.learning.models.load import config_context
from pipeline.learning.models.source import snapshot
from pipeline.learning.rewards.traits import Text, text_of

log = logging.getLogger("pipeline")
_MANY = 0.1
"""Share of unknown tokens above which a warning says so."""
_LONGEST = 1 << 20
"""Limit above which a tokenizer's maximum length means that it has none."""


class RewardModel:
    """A loaded reward model; called like any other reward."""

    def __init__(self, settings: RewardModelSettings, device: str, hints: Path | None = None) -> None:
        """Load model and tokenizer. No code from the folder is ever run.

        Args:
            settings: Model to load, and how it scores.
            device: ``cpu`` or ``cuda``.
            hints: Folder of batch sizes that fitted; None remembers nothing.

        Raises:
            ConfigError: There is no such model, or it has no such label.
            JobError: The hub does not provide the model, or it lacks weights, such as a language model without a
                score head.
        """
        self._settings = settings
        self._device = device
        path = settings.path
        if not Path(path).exists() and is_hub_id(path):
            path = snapshot(path, None)
        try:
            tokenizer: transformers.PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(path)
            model: transformers.PreTrainedModel
            model, told = transformers.AutoModelForSequenceClassification.from_pretrained(
                path,
                dtype=getattr(torch, settings.dtype),
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # rejected below, by name
            )
        except (OSError, ValueError, SafetensorError) as error:
            first = str(error).strip().partition("\n")[0]
            raise ConfigError(f"cannot load the reward model '{settings.path}': {first}") from error
        check_complete(model, settings.path, told)
        self._tokenizer = tokenizer
        self._tokenizer.truncation_side = "left"
        self._tokenizer.padding_side = "right"
        self._model = model
        self._model.to(device)  # type: ignore[arg-type]
        self._model.train(False)
        self._model.requires_grad_(False)
        self._pads_freely = self._model.config.pad_token_id is None
        self._pad()
        names = {str(name): int(index) for index, name in (model.config.id2label or {}).items()}
        self._label = settings.place_of_label(names)
        self._max_length = self._find_max_length()
        self._sizes = BatchSizes(hints, device, model)

    def __call__(
        self,
        prompts: Sequence[Text],
        completions: Sequence[Text],
        tools: Sequence[Any] | None = None,
        chat_template_kwargs: Sequence[Any] | None = None,
        **_: Any,
    ) -> list[float | None]:
        """Score completions of prompts; a text without any token has no score.

        Args:
            prompts: Texts or conversations.
            completions: Texts or conversations.
            tools: Tools of each conversation, for the chat template, as in the training by `RewardTrainer`.
            chat_template_kwargs: Further arguments of the chat template, for each conversation.
        """
        none = [None] * len(prompts)
        columns = zip(prompts, tools or none, chat_template_kwargs or none, strict=True)
        given = [
            {} if isinstance(prompt, str) else template_arguments({"tools": known, ARGUMENTS: more})
            for prompt, known, more in columns
        ]
        remedy = "Try a smaller max_length, or dtype=bfloat16, of the reward."
        longest = self._max_length or _LONGEST
        batch = self._sizes.begin("reward", self._settings.batch_size, length=longest, remedy=remedy)
        scores: list[float | None] = []
        counts = np.zeros(2, np.int64)

        def some() -> list[float | None]:
            part = slice(len(scores), len(scores) + batch.size)
            encoded = self._encode(prompts[part], completions[part], given[part])
            empty = (encoded["attention_mask"].sum(1) == 0).tolist()
            found = [0.0] * len(empty) if all(empty) else self._scores(encoded).tolist()
            counts[:] += self._unknown(encoded)
            return [None if nothing else value for nothing, value in zip(empty, found, strict=True)]

        def left() -> int:
            return len(prompts) - len(scores)

        while left():
            scores += batch.run(some, used=left)
        unknown, tokens = counts.tolist()
        if unknown > _MANY * tokens:
            log.warning(
                "reward model '%s': its tokenizer does not know %s of %s tokens of the texts, and the model reads "
                "them as %s. Use a model that knows them",
                *(self._settings.path, f"{unknown:,}", f"{tokens:,}", unknown_token(self._tokenizer)[0]),
            )
        return scores

    def _unknown(self, encoded: Mapping[str, Tensor]) -> tuple[int, int]:
        """Count the tokens that stand for what the tokenizer does not know, and all; the first begins a text."""
        ids, mask = encoded["input_ids"][:, 1:], encoded["attention_mask"][:, 1:].bool()
        return int(((ids == unknown_token(self._tokenizer)[1]) & mask).sum()), int(mask.sum())

    @torch.inference_mode()
    def _scores(self, encoded: Mapping[str, Tensor]) -> Tensor:
        """Return the scores of encoded texts, shape [B], float64."""
        if self._pads_freely:
            encoded = self._padded_apart(encoded)
        spend("rewards", model_cost(self._model).forward(whole_texts(encoded["attention_mask"].sum(1).numpy())))
        on_device = {name: ids.to(self._device) for name, ids in encoded.items()}
        logits: Tensor = self._model(**on_device).logits.double().cpu()
        if self._label is None:
            single = logits[:, 0]
            return single.sigmoid() if self._settings.output == "probability" else single
        if self._settings.output == "logit":
            return logits[:, self._label]
        chances = logits.log_softmax(-1)
        if self._settings.output == "log_odds":
            others = [index for index in range(logits.shape[1]) if index != self._label]
            return chances[:, self._label] - chances[:, others].logsumexp(-1)
        return chances[:, self._label].exp()

    def _encode(
        self, prompts: Sequence[Text], completions: Sequence[Text], given: Sequence[Mapping[str, Any]]
    ) -> Mapping[str, Tensor]:
        answers = [text_of(completion) for completion in completions]
        if not self._settings.with_prompt:
            return self._tokenized(answers)
        if self._settings.pair:
            return self._tokenized([text_of(prompt) for prompt in prompts], answers)
        if self._tokenizer.chat_template:
            talks = [
                [*as_turns(prompt, "user"), {"role": "assistant", "content": answer}]
                for prompt, answer in zip(prompts, answers, strict=True)
            ]
            texts = [rendered(self._tokenizer, talk, each) for talk, each in zip(talks, given, strict=True)]
            # The template has written the special tokens already.
            return self._tokenized(texts, add_special_tokens=False)
        return self._tokenized([text_of(prompt) + answer for prompt, answer in zip(prompts, answers, strict=True)])

    def _tokenized(self, *segments: Any, **options: Any) -> Mapping[str, Tensor]:
        encoded: Mapping[str, Tensor] = self._tokenizer(
            *segments, padding=True, truncation=True, max_length=self._max_length, return_tensors="pt", **options
        )
        return encoded

    def _pad(self) -> None:
        if self._tokenizer.pad_token is None:
            if self._tokenizer.eos_token is None:
                raise ConfigError(
                    f"the tokenizer of '{self._settings.path}' has neither a padding nor an end token"
                )
            self._tokenizer.pad_token = self._tokenizer.eos_token

    def _padded_apart(self, encoded: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Pad with a token that ends no text of the batch.

        Decoders read their score at the last token that is not the padding one. A model that names none was
        trained to read it at the very last token, which often is the end token that tokenizers pad with; any other
        token does as well, as the mask hides it.
        """
        ids, mask = encoded["input_ids"], encoded["attention_mask"]
        last = set(ids.gather(1, (mask.sum(1, keepdim=True) - 1).clamp(min=0)).flatten().tolist())
        padding = next(token for token in range(len(last) + 1) if token not in last)
        self._model.config.pad_token_id = padding
        return {**encoded, "input_ids": ids.masked_fill(mask == 0, padding)}

    def _find_max_length(self) -> int | None:
        known = (
            self._settings.max_length,
            config_context(self._model.config),
            self._tokenizer.model_max_length,
        )
        limits = [limit for limit in known if limit and limit < _LONGEST]
        return min(limits) if limits else None
