"""A parallel engine for data generation and training rounds of language-model post-training.

What programs of a user's own import comes from here, and from `toolbox` and `gpus`; modules inside may move. Names
are looked up when they are first used, so importing the package, planning and scheduling never import torch: only
worker processes do, after their device has been pinned.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline import gpus as gpus
    from pipeline import toolbox as toolbox
    from pipeline.arithmetic import pin as pin
    from pipeline.commands.python import guided as guided
    from pipeline.commands.python import load_run as load_run
    from pipeline.commands.python import run as run
    from pipeline.config.load import load_config as load_config
    from pipeline.config.schema import AlgoConfig as AlgoConfig
    from pipeline.config.schema import Config as Config
    from pipeline.config.schema import DatasetConfig as DatasetConfig
    from pipeline.config.schema import number as number
    from pipeline.errors import ConfigError as ConfigError
    from pipeline.errors import JobError as JobError
    from pipeline.errors import PipelineError as PipelineError
    from pipeline.learning.algos.base import METRICS as METRICS
    from pipeline.learning.algos.base import Algorithm as Algorithm
    from pipeline.learning.algos.base import JobContext as JobContext
    from pipeline.learning.algos.base import Read as Read
    from pipeline.learning.algos.base import Stage as Stage
    from pipeline.learning.algos.dpo import DPO as DPO
    from pipeline.learning.algos.dpo import DPOConfig as DPOConfig
    from pipeline.learning.algos.grpo import GRPO as GRPO
    from pipeline.learning.algos.grpo import GRPOConfig as GRPOConfig
    from pipeline.learning.algos.policy_config import OnlineConfig as OnlineConfig
    from pipeline.learning.algos.policy_config import PolicyAlgoConfig as PolicyAlgoConfig
    from pipeline.learning.algos.post_training import PostTrainingAlgorithms as PostTrainingAlgorithms
    from pipeline.learning.algos.qsharp import QSharp as QSharp
    from pipeline.learning.algos.qsharp import QSharpConfig as QSharpConfig
    from pipeline.learning.algos.sft import RAFT as RAFT
    from pipeline.learning.algos.sft import SFT as SFT
    from pipeline.learning.algos.sft import RAFTConfig as RAFTConfig
    from pipeline.learning.algos.sft import SFTConfig as SFTConfig
    from pipeline.learning.algos.value_guided import PITA as PITA
    from pipeline.learning.algos.value_guided import PITAConfig as PITAConfig
    from pipeline.learning.algos.value_guided import ValueAlgoConfig as ValueAlgoConfig
    from pipeline.learning.algos.value_guided import ValueGuidedAlgorithms as ValueGuidedAlgorithms
    from pipeline.learning.datasets.base import Dataset as Dataset
    from pipeline.learning.datasets.base import Row as Row
    from pipeline.learning.datasets.from_files import FilesConfig as FilesConfig
    from pipeline.learning.datasets.from_files import FilesDataset as FilesDataset
    from pipeline.learning.evaluation.optimum import reward_kl_front as reward_kl_front
    from pipeline.learning.from_trl import from_trl as from_trl
    from pipeline.learning.rewards.traits import RewardTraits as RewardTraits
    from pipeline.learning.rewards.traits import reward as reward
    from pipeline.runs.notebook import Run as Run

__version__ = "0.1.0"

_HOMES = {
    "": "gpus toolbox",
    "arithmetic": "pin",
    "commands.python": "guided load_run run",
    "config.load": "load_config",
    "config.schema": "AlgoConfig Config DatasetConfig number",
    "errors": "ConfigError JobError PipelineError",
    "learning.algos.base": "Algorithm JobContext METRICS Read Stage",
    "learning.algos.dpo": "DPO DPOConfig",
    "learning.algos.grpo": "GRPO GRPOConfig",
    "learning.algos.policy_config": "OnlineConfig PolicyAlgoConfig",
    "learning.algos.post_training": "PostTrainingAlgorithms",
    "learning.algos.qsharp": "QSharp QSharpConfig",
    "learning.algos.sft": "RAFT RAFTConfig SFT SFTConfig",
    "learning.algos.value_guided": "PITA PITAConfig ValueAlgoConfig ValueGuidedAlgorithms",
    "learning.datasets.base": "Dataset Row",
    "learning.datasets.from_files": "FilesConfig FilesDataset",
    "learning.evaluation.optimum": "reward_kl_front",
    "learning.from_trl": "from_trl",
    "learning.rewards.traits": "RewardTraits reward",
    "runs.notebook": "Run",
}
"""Module -> what users import of it."""
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = [*_HOME_OF]


def look_up(names: dict[str, str], package: str, name: str) -> Any:
    """Import a public name where it is first used.

    Args:
        names: Name -> its module inside of the package; "" for a module of that name.
        package: That offers it.
        name: That is asked for.

    Raises:
        AttributeError: The package has no such name.
    """
    if name not in names:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    home = names[name]
    return getattr(import_module(f"{__name__}.{home}"), name) if home else import_module(f"{__name__}.{name}")


def __getattr__(name: str) -> Any:
    globals()[name] = look_up(_HOME_OF, __name__, name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
