"""What methods do with models, in workers. They find all of it in `toolbox`, which loads it at its first use."""

# ruff: noqa: F401 - names for others

from __future__ import annotations

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.learning.algos import evaluating
from pipeline.learning.algos.evaluating import evaluate, write_metrics
from pipeline.learning.algos.groups import (
    PAIRS,
    Drawn,
    Groups,
    Judge,
    Rollouts,
    draw_groups,
    exact_logprobs,
    score_shard,
)
from pipeline.learning.algos.online import fit_online
from pipeline.learning.algos.opening import (
    encode,
    fresh_value_model,
    frozen_policy,
    guided_policy,
    held_out_count,
    open_dataset,
    reference_model,
    reference_policy,
    reference_source,
    reference_tokenizer,
    round_rows,
    row_ids,
    save_policy,
    score,
    to_train,
)
from pipeline.learning.datasets.base import Dataset, Row, Text
from pipeline.learning.datasets.chat import Answered, encode_answers, encode_demonstration, template_arguments
from pipeline.learning.generation import sampling
from pipeline.learning.generation.policy import (
    BestOfNPolicy,
    Picker,
    TextPolicy,
    TrainedPolicy,
    by_majority,
    by_score,
)
from pipeline.learning.generation.sampling import KnownOffset, Offset, Tilt
from pipeline.learning.models import load
from pipeline.learning.models.batch_size import BatchSizes
from pipeline.learning.models.cache import ModelCache
from pipeline.learning.models.load import load_policy, load_tokenizer
from pipeline.learning.models.source import value_context, write_reference
from pipeline.learning.models.tiny import make_tokenizer, measure_imitation, train_reference
from pipeline.learning.models.value import ValueModel
from pipeline.learning.rewards.preference import ExistingPair, existing_pairs
from pipeline.learning.rewards.registry import judge_of, known_rewards
from pipeline.learning.rewards.scoring import Scored
from pipeline.learning.training import grpo, preferences, value
from pipeline.learning.training.checkpoint import Checkpoints
from pipeline.learning.training.curve import Curve
from pipeline.learning.training.distributed import ALONE, Ranks, save_model
from pipeline.learning.training.grpo import Samples, TokenBatch
from pipeline.learning.training.loop import Fitting, TrainingSet, computing_in, fit, sft_set, trained_tokens
from pipeline.learning.training.scoring import completion_logprobs, note_scored, score_sequences, without_padding
from pipeline.learning.training.sequences import Sequences, prompt_folds
