"""How small models are trained, and settings of losses."""

from dataclasses import fields
from typing import Any

from pipeline.config.schema import TrainingConfig
from pipeline.learning.algos.grpo import GRPOConfig
from pipeline.learning.algos.policy_config import Sampling
from pipeline.learning.choices import GRPOLoss
from pipeline.learning.training.loop import Fitting

_OF_TRAINING = {each.name for each in fields(TrainingConfig)}


def fitting(micro_batch_size: int = 8, **given: Any) -> Fitting:
    """Batches of 8 at a rate of 0.01 without warm-up, but for what is given: of a fitting or of `training`."""
    training = {name: given.pop(name) for name in [*given] if name in _OF_TRAINING}
    how = TrainingConfig(**{"micro_batch_size": micro_batch_size, "warmup_steps": 0, **training})
    return Fitting(**{"batch_size": 8, "learning_rate": 1e-2, "training": how, **given})


def of_grpo(**given: Any) -> GRPOConfig:
    """The loss of GRPO on groups of 4 that were drawn beforehand, but for what is given."""
    fixed = {"sampling": Sampling.round, "loss_type": GRPOLoss.grpo, "use_bias_correction_kl": False}
    return GRPOConfig(**{**fixed, **given})
