"""A parallel engine for data generation and training rounds of language-model post-training.

What programs of a user's own import comes from here, and from `toolbox`, `gpus` and `sweeps`; modules inside may
move. Names are looked up when they are first used, so importing the package, planning and scheduling never import
torch: only worker processes do, after their device has been pinned.
"""

import re
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline import gpus as gpus
    from pipeline import sweeps as sweeps
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
    from pipeline.learning.from_trl import from_trl as from_trl
    from pipeline.learning.rewards.traits import RewardTraits as RewardTraits
    from pipeline.learning.rewards.traits import reward as reward
    from pipeline.runs.notebook import Run as Run

__version__ = "0.1.0"


def look_up(module: str, name: str) -> Any:
    """Import a public name where it is first used.

    Args:
        module: One of this package whose block for type checkers imports what it offers.
        name: Name to look up; ``__all__`` for all that there are.

    Raises:
        AttributeError: The module has no such name.
    """
    homes = _homes(module)
    if name == "__all__":
        return [*homes]
    if name not in homes:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    home = import_module(homes[name])
    found = import_module(f"{__name__}.{name}") if homes[name] == __name__ else getattr(home, name)
    setattr(sys.modules[module], name, found)
    return found


@cache
def _homes(module: str) -> dict[str, str]:
    """Return name -> module, for the public names of a module."""
    text = Path(str(sys.modules[module].__file__)).read_text(encoding="utf-8")
    return {name: home for home, name in re.findall(r"^    from (\S+) import (\w+) as \2$", text, re.MULTILINE)}


def __getattr__(name: str) -> Any:
    return look_up(__name__, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *look_up(__name__, "__all__")])
