"""Others than our own decoder that complete prompts, where nothing guides: `generation.backend`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.config.schema import GenerationConfig, TextBackend
from pipeline.learning.generation.sampling import Keys

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pipeline.learning.generation.decode import Decoded, DecodeSettings
    from pipeline.learning.models.batch_size import BatchSizes


class TextDecoder(Protocol):
    """Completes prompts by a model as it is."""

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
        """Complete prompts; see `TextPolicy.complete`, and `decode` for `begun`."""


DecoderOf = Callable[["PreTrainedModel", GenerationConfig, "DecodeSettings", "BatchSizes"], TextDecoder | None]
"""Makes what completes prompts by a model, or None for our own decoder; as `backend_of` is called."""


def backend_of(
    model: PreTrainedModel, generation: GenerationConfig, settings: DecodeSettings, sizes: BatchSizes
) -> TextDecoder | None:
    """What the request asks for; None for our own decoder.

    Args:
        model: The policy, in evaluation mode.
        generation: Names it.
        settings: How to decode; `batch_size` is how many sequences are decoded at once at most.
        sizes: Batch sizes that fitted before.
    """
    if generation.backend is TextBackend.vllm:
        from pipeline.learning.generation.backends.vllm_engine import VLLMBackend

        return VLLMBackend(model, settings, sizes, generation.memory_mb)
    return None
