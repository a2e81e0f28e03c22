"""A parallel engine for data generation and training rounds of language-model post-training.

What programs of a user's own import comes from here; modules inside may move. Names are looked up when they are
first used, so importing the package, planning and scheduling never import torch: only worker processes do, after
their device has been pinned.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.arithmetic import pin as pin
    from pipeline.commands.guided import guided as guided
    from pipeline.commands.python import load_run as load_run
    from pipeline.commands.python import run as run
    from pipeline.commands.run import run_experiment as run_experiment
    from pipeline.config.bases import AlgoConfig as AlgoConfig
    from pipeline.config.bases import DatasetConfig as DatasetConfig
    from pipeline.config.bases import Settings as Settings
    from pipeline.config.fields import file_or_folder as file_or_folder
    from pipeline.config.fields import number as number
    from pipeline.config.load import load_config as load_config
    from pipeline.config.schema import Config as Config
    from pipeline.engine.devices.api import auto_select_gpus_for_model as auto_select_gpus_for_model
    from pipeline.engine.devices.api import get_available_gpus as get_available_gpus
    from pipeline.engine.devices.api import get_gpu_info as get_gpu_info
    from pipeline.engine.devices.api import get_gpu_memory_usage as get_gpu_memory_usage
    from pipeline.engine.devices.api import get_optimal_device as get_optimal_device
    from pipeline.engine.devices.api import print_gpu_info as print_gpu_info
    from pipeline.engine.devices.api import select_gpus as select_gpus
    from pipeline.engine.devices.api import set_visible_gpus as set_visible_gpus
    from pipeline.engine.devices.api import setup_gpu_environment as setup_gpu_environment
    from pipeline.engine.devices.resolve import Order as Order
    from pipeline.errors import ConfigError as ConfigError
    from pipeline.errors import DataError as DataError
    from pipeline.errors import DeviceError as DeviceError
    from pipeline.errors import JobError as JobError
    from pipeline.errors import JobStopped as JobStopped
    from pipeline.errors import PipelineError as PipelineError
    from pipeline.files import json_text as json_text
    from pipeline.learning.algos import toolbox as toolbox
    from pipeline.learning.algos.base import METRICS as METRICS
    from pipeline.learning.algos.base import REFERENCE_TRAIN as REFERENCE_TRAIN
    from pipeline.learning.algos.base import START_TRAIN as START_TRAIN
    from pipeline.learning.algos.base import TEXT as TEXT
    from pipeline.learning.algos.base import Algorithm as Algorithm
    from pipeline.learning.algos.base import JobContext as JobContext
    from pipeline.learning.algos.base import Read as Read
    from pipeline.learning.algos.base import Section as Section
    from pipeline.learning.algos.base import Stage as Stage
    from pipeline.learning.algos.best_of_n import BestOfN as BestOfN
    from pipeline.learning.algos.best_of_n import BestOfNConfig as BestOfNConfig
    from pipeline.learning.algos.dpo import DPO as DPO
    from pipeline.learning.algos.dpo import ORPO as ORPO
    from pipeline.learning.algos.dpo import DPOConfig as DPOConfig
    from pipeline.learning.algos.dpo import ORPOConfig as ORPOConfig
    from pipeline.learning.algos.dpo import SimPO as SimPO
    from pipeline.learning.algos.dpo import SimPOConfig as SimPOConfig
    from pipeline.learning.algos.groups import Drawn as Drawn
    from pipeline.learning.algos.groups import Groups as Groups
    from pipeline.learning.algos.groups import draw_groups as draw_groups
    from pipeline.learning.algos.groups import score_groups as score_groups
    from pipeline.learning.algos.grpo import GRPO as GRPO
    from pipeline.learning.algos.grpo import RLOO as RLOO
    from pipeline.learning.algos.grpo import GRPOConfig as GRPOConfig
    from pipeline.learning.algos.grpo import REINFORCEpp as REINFORCEpp
    from pipeline.learning.algos.grpo import REINFORCEppConfig as REINFORCEppConfig
    from pipeline.learning.algos.grpo import RLOOConfig as RLOOConfig
    from pipeline.learning.algos.grpo_hf import GRPOHF as GRPOHF
    from pipeline.learning.algos.grpo_hf import GRPOHFConfig as GRPOHFConfig
    from pipeline.learning.algos.kto import KTO as KTO
    from pipeline.learning.algos.kto import KTOConfig as KTOConfig
    from pipeline.learning.algos.pita import PITA as PITA
    from pipeline.learning.algos.pita import PITAConfig as PITAConfig
    from pipeline.learning.algos.policy_config import OnlineConfig as OnlineConfig
    from pipeline.learning.algos.policy_config import PolicyAlgoConfig as PolicyAlgoConfig
    from pipeline.learning.algos.post_training import PostTrainingAlgorithms as PostTrainingAlgorithms
    from pipeline.learning.algos.post_training import fitting_of as fitting_of
    from pipeline.learning.algos.post_training import trained_policy as trained_policy
    from pipeline.learning.algos.qsharp import CD as CD
    from pipeline.learning.algos.qsharp import CDConfig as CDConfig
    from pipeline.learning.algos.qsharp import QSharp as QSharp
    from pipeline.learning.algos.qsharp import QSharpConfig as QSharpConfig
    from pipeline.learning.algos.qsharp_hf import QSharpHF as QSharpHF
    from pipeline.learning.algos.qsharp_hf import QSharpHFConfig as QSharpHFConfig
    from pipeline.learning.algos.rollouts import Rollouts as Rollouts
    from pipeline.learning.algos.sft import RAFT as RAFT
    from pipeline.learning.algos.sft import SFT as SFT
    from pipeline.learning.algos.sft import RAFTConfig as RAFTConfig
    from pipeline.learning.algos.sft import SFTConfig as SFTConfig
    from pipeline.learning.algos.value_guided import ValueAlgoConfig as ValueAlgoConfig
    from pipeline.learning.algos.value_guided import ValueGuidedAlgorithms as ValueGuidedAlgorithms
    from pipeline.learning.choices import GRPOLoss as GRPOLoss
    from pipeline.learning.datasets.base import Dataset as Dataset
    from pipeline.learning.datasets.base import Row as Row
    from pipeline.learning.datasets.columns import needed as needed
    from pipeline.learning.datasets.from_files import FilesConfig as FilesConfig
    from pipeline.learning.datasets.from_files import FilesDataset as FilesDataset
    from pipeline.learning.evaluation.front import reward_kl_front as reward_kl_front
    from pipeline.learning.from_trl import from_trl as from_trl
    from pipeline.learning.generation.guided import Completion as Completion
    from pipeline.learning.generation.guided import Guided as Guided
    from pipeline.learning.generation.policy import TextPolicy as TextPolicy
    from pipeline.learning.generation.sampling import sample_keys as sample_keys
    from pipeline.learning.generation.tilt import Offset as Offset
    from pipeline.learning.models.batch_size import MICRO_BATCH as MICRO_BATCH
    from pipeline.learning.models.batch_size import BatchSizes as BatchSizes
    from pipeline.learning.models.flops import answered as answered
    from pipeline.learning.models.flops import spend as spend
    from pipeline.learning.models.load import load_policy as load_policy
    from pipeline.learning.models.value import ValueModel as ValueModel
    from pipeline.learning.rewards.preference import decide as decide
    from pipeline.learning.rewards.preference import existing_pairs as existing_pairs
    from pipeline.learning.rewards.traits import RewardTraits as RewardTraits
    from pipeline.learning.rewards.traits import reward as reward
    from pipeline.learning.training.checkpoint import Checkpoints as Checkpoints
    from pipeline.learning.training.checkpoint import State as State
    from pipeline.learning.training.checkpoint import random_state as random_state
    from pipeline.learning.training.checkpoint import restore_random_state as restore_random_state
    from pipeline.learning.training.checkpoint import restore_training as restore_training
    from pipeline.learning.training.checkpoint import state_problem as state_problem
    from pipeline.learning.training.checkpoint import training_state as training_state
    from pipeline.learning.training.curve import add_to_curve as add_to_curve
    from pipeline.learning.training.distributed import Ranks as Ranks
    from pipeline.learning.training.distributed import save_model as save_model
    from pipeline.learning.training.grpo import Samples as Samples
    from pipeline.learning.training.grpo import TokenBatch as TokenBatch
    from pipeline.learning.training.loop import TrainSettings as TrainSettings
    from pipeline.learning.training.loop import train as train
    from pipeline.learning.training.policy import Fitting as Fitting
    from pipeline.learning.training.policy import TrainingSet as TrainingSet
    from pipeline.learning.training.policy import fit as fit
    from pipeline.learning.training.policy import fit_sft as fit_sft
    from pipeline.learning.training.policy import trained_tokens as trained_tokens
    from pipeline.learning.training.scoring import completion_logprobs as completion_logprobs
    from pipeline.learning.training.scoring import score_sequences as score_sequences
    from pipeline.learning.training.sequences import Batch as Batch
    from pipeline.learning.training.sequences import Sequences as Sequences
    from pipeline.outputs.curves import TrainingStep as TrainingStep
    from pipeline.outputs.curves import read_curve as read_curve
    from pipeline.outputs.curves import write_curve as write_curve
    from pipeline.outputs.prompts import PromptMeasures as PromptMeasures
    from pipeline.outputs.prompts import write_prompts as write_prompts
    from pipeline.plan.graph import Job as Job
    from pipeline.runs.notebook import Run as Run

__version__ = "0.1.0"

_HOMES = {
    "arithmetic": "pin",
    "commands.guided": "guided",
    "commands.python": "load_run run",
    "commands.run": "run_experiment",
    "config.bases": "AlgoConfig DatasetConfig Settings",
    "config.fields": "file_or_folder number",
    "config.load": "load_config",
    "config.schema": "Config",
    "engine.devices.api": "auto_select_gpus_for_model get_available_gpus get_gpu_info get_gpu_memory_usage "
    "get_optimal_device print_gpu_info select_gpus set_visible_gpus setup_gpu_environment",
    "engine.devices.resolve": "Order",
    "errors": "ConfigError DataError DeviceError JobError JobStopped PipelineError",
    "files": "json_text",
    "learning.algos": "toolbox",
    "learning.algos.base": "Algorithm JobContext METRICS REFERENCE_TRAIN START_TRAIN Read Section Stage TEXT",
    "learning.algos.best_of_n": "BestOfN BestOfNConfig",
    "learning.algos.dpo": "DPO DPOConfig ORPO ORPOConfig SimPO SimPOConfig",
    "learning.algos.groups": "Drawn Groups draw_groups score_groups",
    "learning.algos.grpo": "GRPO GRPOConfig REINFORCEpp REINFORCEppConfig RLOO RLOOConfig",
    "learning.algos.grpo_hf": "GRPOHF GRPOHFConfig",
    "learning.algos.kto": "KTO KTOConfig",
    "learning.algos.pita": "PITA PITAConfig",
    "learning.algos.policy_config": "OnlineConfig PolicyAlgoConfig",
    "learning.algos.post_training": "PostTrainingAlgorithms fitting_of trained_policy",
    "learning.algos.qsharp": "CD CDConfig QSharp QSharpConfig",
    "learning.algos.qsharp_hf": "QSharpHF QSharpHFConfig",
    "learning.algos.rollouts": "Rollouts",
    "learning.algos.sft": "RAFT RAFTConfig SFT SFTConfig",
    "learning.algos.value_guided": "ValueGuidedAlgorithms ValueAlgoConfig",
    "learning.choices": "GRPOLoss",
    "learning.datasets.base": "Dataset Row",
    "learning.datasets.columns": "needed",
    "learning.datasets.from_files": "FilesConfig FilesDataset",
    "learning.evaluation.front": "reward_kl_front",
    "learning.from_trl": "from_trl",
    "learning.generation.guided": "Completion Guided",
    "learning.generation.policy": "TextPolicy",
    "learning.generation.sampling": "sample_keys",
    "learning.generation.tilt": "Offset",
    "learning.models.batch_size": "BatchSizes MICRO_BATCH",
    "learning.models.flops": "answered spend",
    "learning.models.load": "load_policy",
    "learning.models.value": "ValueModel",
    "learning.rewards.preference": "decide existing_pairs",
    "learning.rewards.traits": "RewardTraits reward",
    "learning.training.checkpoint": "Checkpoints State random_state restore_random_state restore_training "
    "state_problem training_state",
    "learning.training.curve": "add_to_curve",
    "learning.training.distributed": "Ranks save_model",
    "learning.training.grpo": "TokenBatch Samples",
    "learning.training.loop": "TrainSettings train",
    "learning.training.policy": "Fitting TrainingSet fit trained_tokens fit_sft",
    "learning.training.scoring": "completion_logprobs score_sequences",
    "learning.training.sequences": "Batch Sequences",
    "outputs.curves": "TrainingStep read_curve write_curve",
    "outputs.prompts": "PromptMeasures write_prompts",
    "plan.graph": "Job",
    "runs.notebook": "Run",
}
"""Module -> what users import of it."""
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = [*_HOME_OF]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"pipeline.{_HOME_OF[name]}")
    found = getattr(home, name, None)
    globals()[name] = found if found is not None else import_module(f"{home.__name__}.{name}")
    return globals()[name]


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
