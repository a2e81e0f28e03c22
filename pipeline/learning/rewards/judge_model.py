"""A judge that is loaded in the worker and decoded like policies. No code from its folder is run."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipeline.config.schema import DatasetConfig, DType, GenerationConfig, SystemConfig
from pipeline.errors import ConfigError
from pipeline.learning.datasets.base import Dataset, Row
from pipeline.learning.datasets.files import is_hub_id
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.generation.sampling import sample_keys
from pipeline.learning.models.batch_size import BatchSizes
from pipeline.learning.models.flops import metered, spend
from pipeline.learning.models.load import context_length, load_policy, load_tokenizer
from pipeline.learning.models.source import snapshot
from pipeline.learning.rewards.judge import Asking, JudgeSettings, Reply


class _Prompts(Dataset):
    """A dataset without rows or limits, which `TextPolicy` needs."""

    def row(self, row_id: int) -> Row:
        raise AssertionError("there are no rows")


class JudgeModel:
    """A causal language model, prompted through its chat template if it has one."""

    def __init__(self, settings: JudgeSettings, device: str, hints: Path | None) -> None:
        """Load model and tokenizer.

        Args:
            settings: Model to load, and how it replies.
            device: ``cpu`` or ``cuda``.
            hints: Folder of batch sizes that fitted; None remembers nothing.

        Raises:
            ConfigError: There is no such model.
            JobError: The hub does not provide the model, or it is no language model.
        """
        path = settings.path
        if not Path(path).exists() and is_hub_id(path):
            path = snapshot(path, None)
        try:
            self._tokenizer = load_tokenizer(path)
            model = load_policy(path, SystemConfig(dtype=DType[settings.dtype]), device)
        except (OSError, ValueError) as error:
            first = str(error).strip().partition("\n")[0]
            raise ConfigError(f"cannot load the judge '{settings.path}': {first}") from error
        self._draws = settings.temperature > 0
        how = GenerationConfig(batch_size=settings.batch_size, max_new_tokens=settings.max_tokens)
        if self._draws:
            how = replace(how, temperature=settings.temperature, top_p=settings.top_p)
        sizes = BatchSizes(hints, device, model)
        self._policy = TextPolicy(model, self._tokenizer, how, _Prompts(DatasetConfig()), device, sizes=sizes)
        context = context_length(model)
        self._room = None if context is None else context - self._policy.limit
        special = [str(token) for token in self._tokenizer.added_tokens_decoder.values() if token.special]
        self._special = re.compile("|".join(map(re.escape, special))) if special else None

    def ask(self, prompts: Sequence[str], asking: Asking) -> list[Reply]:
        """Return a reply to each prompt, in order; a prompt too long for the context gets a problem instead."""
        texts = [self._plain(prompt) for prompt in prompts]
        chats = self._tokenizer.chat_template is not None
        ids = self._policy.encode([[{"role": "user", "content": text}] if chats else text for text in texts])
        fits = [at for at, each in enumerate(ids) if self._room is None or len(each) <= self._room]
        rows = [int.from_bytes(hashlib.sha256(prompts[at].encode(errors="replace")).digest()[:7]) for at in fits]
        keys = sample_keys(0, "judge", np.array(rows, np.int64), 1) if self._draws else None

        def told(done: int, _: int) -> None:
            asking.told(done / len(fits))

        with metered() as meter:  # the reply is not an answer of the policy
            tokens = self._policy.complete([ids[at] for at in fits], keys, on_batch=told).tokens if fits else []
        spend("rewards", meter.total)
        found = dict(zip(fits, self._policy.text(tokens), strict=True))
        return [self._reply(found.get(at), len(ids[at])) for at in range(len(prompts))]

    def _reply(self, text: str | None, length: int) -> Reply:
        if text is not None:
            return Reply(text=text)
        return Reply(problem=f"its prompt of {length} tokens leaves no room for a reply in the judge's context")

    def _plain(self, text: str) -> str:
        """Break special tokens in a text, so that a completion cannot forge a turn of the conversation."""
        return (
            text
            if self._special is None
            else self._special.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)
        )
