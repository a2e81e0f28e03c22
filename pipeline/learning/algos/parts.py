"""What methods do with models, in workers. They find all of it in `toolbox`, which loads it at its first use."""

# ruff: noqa: F401 - names for others

from __future__ import annotations

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.learning.algos.evaluating import (
    GREEDY_SAMPLES,
    NOTHING,
    anchor_measures,
    chosen,
    evaluate,
    evaluate_greedy,
    evaluate_right,
    strengths,
    swept,
    write_metrics,
)
from pipeline.learning.algos.groups import PAIRS, Drawn, Groups, Judge, Rollouts, draw_groups, score_shard
from pipeline.learning.algos.online import fit_online
from pipeline.learning.algos.opening import (
    encode,
    fresh_value_model,
    guided_policy,
    held_out_count,
    open_dataset,
    reference_model,
    reference_policy,
    reference_source,
    round_rows,
    row_ids,
    score,
)
from pipeline.learning.algos.policy_weights import exact_logprobs, frozen_policy, save_policy, to_train
from pipeline.learning.datasets.answers import Answered, encode_answers, encode_demonstration
from pipeline.learning.datasets.base import Dataset, Row, Text
from pipeline.learning.datasets.chat import template_arguments
from pipeline.learning.generation.policy import (
    BestOfNPolicy,
    Picker,
    TextPolicy,
    TrainedPolicy,
    by_majority,
    by_score,
)
from pipeline.learning.generation.tilt import (
    KnownOffset,
    Offset,
    Tilt,
    atoms_offset,
    bernoulli_offset,
    expected_atoms_offset,
    expected_offset,
    preference_offset,
)
from pipeline.learning.models.batch_size import BatchSizes
from pipeline.learning.models.cache import ModelCache
from pipeline.learning.models.load import (
    context_length,
    end_ids,
    length_beside_others,
    load_policy,
    load_tokenizer,
    load_value,
    save_tokenizer,
)
from pipeline.learning.models.source import value_context, write_reference
from pipeline.learning.models.tiny import make_tokenizer, measure_imitation, train_reference
from pipeline.learning.models.value import ValueModel
from pipeline.learning.rewards.preference import ExistingPair, existing_pairs
from pipeline.learning.rewards.registry import judge_of, known_rewards
from pipeline.learning.rewards.scoring import Scored
from pipeline.learning.training.checkpoint import Checkpoints
from pipeline.learning.training.curve import Curve
from pipeline.learning.training.distributed import ALONE, Ranks, save_model
from pipeline.learning.training.grpo import (
    Objective,
    Samples,
    TokenBatch,
    checked_advantages,
    clipped_surrogate,
    group_advantages,
    grpo_set,
    importance_ratio,
    leave_one_out,
    log_ratios,
    padded,
    supervised_columns,
    whitened_returns,
)
from pipeline.learning.training.policy import Fitting, TrainingSet, computing_in, fit, sft_set, trained_tokens
from pipeline.learning.training.preferences import (
    DPOObjective,
    KTOObjective,
    PairLoss,
    dpo_set,
    kto_set,
    orpo_set,
    simpo_set,
)
from pipeline.learning.training.scoring import completion_logprobs, note_scored, score_sequences, without_padding
from pipeline.learning.training.sequences import Sequences, prompt_folds
from pipeline.learning.training.value import (
    Scale,
    calibrate,
    fit_reward_model,
    fit_value,
    held_out,
    reward_scores,
    share_preferred,
)
