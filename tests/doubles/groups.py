"""Groups of completions that nobody has drawn."""

from typing import Any

import numpy as np

from pipeline.learning.algos.groups import Groups
from pipeline.learning.generation.sampling import sample_keys
from pipeline.learning.rewards.scoring import Scored
from pipeline.learning.training.grpo import Samples, padded
from pipeline.learning.training.sequences import Sequences


def groups_of(
    size: int, prompts: list[list[int]], tokens: list[list[int]], scored: Scored, **others: Any
) -> Groups:
    """Groups of these completions; what is not said is none or the first of its kind."""
    count = len(tokens) // size
    given: dict[str, Any] = {
        "texts": [str(one) for one in tokens],
        "ids": np.arange(count),
        "cuts": np.zeros(count, np.int64),
        "truncated": np.zeros(len(tokens), np.bool_),
        "generated": sum(map(len, tokens)),
        "keys": sample_keys(0, "test", np.arange(count), 1)[:, 0],
    }
    return Groups(size=size, prompts=prompts, tokens=tokens, scored=scored, **(given | others))


def samples_of(prompts: Any, completions: Any, rewards: Any, logprobs: Any = None) -> Samples:
    """Prompts and completions as token ids, with rewards; log-probabilities are 0 where they are not given."""
    ids = [[*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)]
    taken = [np.zeros(len(one), np.float32) for one in completions] if logprobs is None else logprobs
    return Samples(Sequences.of(ids, [*map(len, prompts)], list(rewards)), padded(taken))
