"""Building blocks for a user's own methods, datasets and rewards, besides their base classes.

Names are looked up when they are first used. Most import torch: import those inside of methods, or under
`TYPE_CHECKING`.
"""

from typing import TYPE_CHECKING, Any

from pipeline import look_up

if TYPE_CHECKING:
    from pipeline.config.schema import Settings as Settings
    from pipeline.config.schema import file_or_folder as file_or_folder
    from pipeline.errors import JobStopped as JobStopped
    from pipeline.files import json_text as json_text
    from pipeline.learning.algos.base import REFERENCE_TRAIN as REFERENCE_TRAIN
    from pipeline.learning.algos.base import START_TRAIN as START_TRAIN
    from pipeline.learning.algos.base import TEACHER_TRAIN as TEACHER_TRAIN
    from pipeline.learning.algos.base import TEXT as TEXT
    from pipeline.learning.algos.block_search import BlockSearch as BlockSearch
    from pipeline.learning.algos.block_search import BlockSearchConfig as BlockSearchConfig
    from pipeline.learning.algos.dpo import KTO as KTO
    from pipeline.learning.algos.dpo import ORPO as ORPO
    from pipeline.learning.algos.dpo import KTOConfig as KTOConfig
    from pipeline.learning.algos.dpo import ORPOConfig as ORPOConfig
    from pipeline.learning.algos.dpo import SimPO as SimPO
    from pipeline.learning.algos.dpo import SimPOConfig as SimPOConfig
    from pipeline.learning.algos.evaluating import evaluate as evaluate
    from pipeline.learning.algos.evaluating import write_metrics as write_metrics
    from pipeline.learning.algos.groups import Drawn as Drawn
    from pipeline.learning.algos.groups import Groups as Groups
    from pipeline.learning.algos.groups import Rollouts as Rollouts
    from pipeline.learning.algos.grpo import GRPOHF as GRPOHF
    from pipeline.learning.algos.grpo import RLOO as RLOO
    from pipeline.learning.algos.grpo import GRPOHFConfig as GRPOHFConfig
    from pipeline.learning.algos.grpo import REINFORCEpp as REINFORCEpp
    from pipeline.learning.algos.grpo import REINFORCEppConfig as REINFORCEppConfig
    from pipeline.learning.algos.grpo import RLOOConfig as RLOOConfig
    from pipeline.learning.algos.opening import encode as encode
    from pipeline.learning.algos.opening import fresh_value_model as fresh_value_model
    from pipeline.learning.algos.opening import guided_policy as guided_policy
    from pipeline.learning.algos.opening import held_out_rows as held_out_rows
    from pipeline.learning.algos.opening import open_dataset as open_dataset
    from pipeline.learning.algos.opening import reference_model as reference_model
    from pipeline.learning.algos.opening import reference_policy as reference_policy
    from pipeline.learning.algos.opening import reference_source as reference_source
    from pipeline.learning.algos.opening import round_rows as round_rows
    from pipeline.learning.algos.opening import row_ids as row_ids
    from pipeline.learning.algos.opening import score as score
    from pipeline.learning.algos.opening import trained_policy as trained_policy
    from pipeline.learning.algos.policy_config import TaughtConfig as TaughtConfig
    from pipeline.learning.algos.post_training import fitting_of as fitting_of
    from pipeline.learning.algos.qsharp import CD as CD
    from pipeline.learning.algos.qsharp import CDConfig as CDConfig
    from pipeline.learning.algos.qsharp import QSharpHF as QSharpHF
    from pipeline.learning.algos.qsharp import QSharpHFConfig as QSharpHFConfig
    from pipeline.learning.algos.reward_stage import RM as RM
    from pipeline.learning.algos.reward_stage import BestOfN as BestOfN
    from pipeline.learning.algos.reward_stage import BestOfNConfig as BestOfNConfig
    from pipeline.learning.algos.reward_stage import RMConfig as RMConfig
    from pipeline.learning.choices import GRPOLoss as GRPOLoss
    from pipeline.learning.choices import Others as Others
    from pipeline.learning.datasets.from_files import needed as needed
    from pipeline.learning.evaluation.metrics import reward_kl_front as reward_kl_front
    from pipeline.learning.generation.policy import TextPolicy as TextPolicy
    from pipeline.learning.generation.sampling import Offset as Offset
    from pipeline.learning.generation.sampling import Tilt as Tilt
    from pipeline.learning.generation.sampling import sample_keys as sample_keys
    from pipeline.learning.models.batch_size import BatchSizes as BatchSizes
    from pipeline.learning.models.flops import answered as answered
    from pipeline.learning.models.flops import spend as spend
    from pipeline.learning.models.load import load_policy as load_policy
    from pipeline.learning.models.value import ValueModel as ValueModel
    from pipeline.learning.rewards.preference import decide as decide
    from pipeline.learning.rewards.preference import existing_pairs as existing_pairs
    from pipeline.learning.training.checkpoint import Checkpoints as Checkpoints
    from pipeline.learning.training.distributed import save_model as save_model
    from pipeline.learning.training.grpo import Samples as Samples
    from pipeline.learning.training.grpo import TokenBatch as TokenBatch
    from pipeline.learning.training.loop import Fitting as Fitting
    from pipeline.learning.training.loop import TrainingSet as TrainingSet
    from pipeline.learning.training.loop import add_to_curve as add_to_curve
    from pipeline.learning.training.loop import fit as fit
    from pipeline.learning.training.loop import fit_sft as fit_sft
    from pipeline.learning.training.loop import train as train
    from pipeline.learning.training.scoring import completion_logprobs as completion_logprobs
    from pipeline.learning.training.sequences import Sequences as Sequences
    from pipeline.outputs.prompts import PromptMeasures as PromptMeasures
    from pipeline.outputs.prompts import write_prompts as write_prompts
    from pipeline.plan.graph import Job as Job


def __getattr__(name: str) -> Any:
    return look_up(__name__, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *look_up(__name__, "__all__")])
