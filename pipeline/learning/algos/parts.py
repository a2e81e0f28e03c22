"""Functions and classes that methods use in workers.

`from pipeline.learning.algos import parts` gives a proxy that loads this module, and torch with it, at first use.
"""

# ruff: noqa: F401 - names for others

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.learning.algos import evaluating, opening
from pipeline.learning.algos.evaluating import evaluate, write_metrics
from pipeline.learning.algos.groups import PAIRS, Drawn, Groups, Judge, Rollouts, draw_groups, exact_logprobs
from pipeline.learning.algos.groups import score_shard as score_shard
from pipeline.learning.algos.online import fit_online
from pipeline.learning.algos.opening import open_dataset
from pipeline.learning.datasets import chat
from pipeline.learning.datasets.base import Dataset, Row, Text
from pipeline.learning.generation import blocks, policy, sampling
from pipeline.learning.generation.policy import TextPolicy
from pipeline.learning.generation.sampling import KnownOffset, Offset, Tilt
from pipeline.learning.models import load, source, tiny
from pipeline.learning.models.batch_size import BatchSizes
from pipeline.learning.models.value import ValueModel
from pipeline.learning.rewards.preference import ExistingPair, existing_pairs
from pipeline.learning.rewards.registry import judge_of, known_rewards
from pipeline.learning.rewards.scoring import Scored
from pipeline.learning.training import distillation, grpo, lora, preferences, scoring, value
from pipeline.learning.training.distillation import Teacher
from pipeline.learning.training.distributed import save_model
from pipeline.learning.training.grpo import Samples, TokenBatch
from pipeline.learning.training.loop import Fitting, TrainingSet, computing_in, fit, sft_set, trained_tokens
from pipeline.learning.training.sequences import Batch, Sequences, prompt_folds, prompt_ids, text_id
