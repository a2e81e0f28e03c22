"""How much room the models that a plan trains take on the disk of the store, before anything runs.

Policies, value models and reward models are stored in float32. Texts, evaluations and adapters are not counted:
they are a hundredth of that, and how long texts get is not known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pipeline.config.schema import AlgoConfig, Config, Keep
from pipeline.learning.algos.base import Stage
from pipeline.learning.algos.policy_config import stores_adapters
from pipeline.learning.memory.fit import Precision, bytes_per_parameter
from pipeline.plan.chains import REFERENCE, chains
from pipeline.plan.estimates import weights_in_name
from pipeline.plan.graph import Job, Plan
from pipeline.plan.models import count_weights, is_gguf, weights_at


@dataclass(frozen=True, kw_only=True)
class DiskNeed:
    """What the jobs that are to run take of the disk.

    Attributes:
        made: Bytes of all models that are trained.
        stays: Bytes that are left of them at the end, when `execution.keep` has removed what it is to.
        least: Bytes that are there at some time in any case, of models whose files are here.
        checkpoints: Bytes of checkpoints at most, while trainings last that long.
        unknown: Models of which nothing tells how large they are, as ``models.hf``.
    """

    made: int = 0
    stays: int = 0
    least: int = 0
    checkpoints: int = 0
    unknown: tuple[str, ...] = ()


def disk_need(plan: Plan, config: Config, missing: Collection[str], workers: int) -> DiskNeed:
    """Reckon what the jobs of a plan take that are to run.

    Args:
        plan: The plan.
        config: Its request.
        missing: Ids of the jobs that must run.
        workers: How many there are, so that as many trainings may have checkpoints at once.
    """
    stages = {
        (chain.algo, stage.name): (stage, chain.config)
        for chain in chains(config)
        for stage in chain.kind.stages_with(chain.config)
    }
    fixed = sure = 0
    rounds: dict[str, dict[int, int]] = {}
    known: dict[str, dict[int, int]] = {}
    checkpoints, unknown = list[int](), dict[str, None]()
    for job in (plan.jobs[job_id] for job_id in missing):
        stage, algo = stages.get((job.algo, job.stage), (None, None))
        if stage is None or algo is None or not (stage.saves or (job.algo == REFERENCE and stage.scales)):
            continue
        model = config.models[job.model]
        each, weights = _stored(config, job, stage, algo)
        if each and not weights:
            unknown[f"models.{job.model}"] = None
        size = each * weights
        is_sure = model.is_trained or not (is_gguf(str(model.path)) or weights_in_name(str(model.path)))
        if job.weights:
            of_chain = rounds.setdefault(job.chain, {})
            of_chain[job.round] = of_chain.get(job.round, 0) + size
            if is_sure:
                known.setdefault(job.chain, {})[job.round] = of_chain[job.round]
        else:
            fixed += size
            sure += size if is_sure else 0
        if _lasts(config, job):
            weight, _, state = bytes_per_parameter(Precision.float32, config.training.optimizer)
            checkpoints.append(2 * (weight + state) * weights)
    at_once = max(1, workers // max((plan.jobs[job_id].devices for job_id in missing), default=1))
    keep = config.execution.keep
    made = [size for each in rounds.values() for size in each.values()]
    largest = max((size for each in known.values() for size in each.values()), default=0)
    return DiskNeed(
        made=fixed + sum(made),
        stays=fixed + _left(keep, rounds),
        least=sure + max(_left(keep, known), largest),
        checkpoints=sum(sorted(checkpoints)[-at_once:]),
        unknown=tuple(unknown),
    )


def _left(keep: Keep, rounds: Mapping[str, Mapping[int, int]]) -> int:
    """Bytes that stay of the models of each chain's rounds; all rounds of a chain are as large."""
    if keep is Keep.all:
        return sum(sum(each.values()) for each in rounds.values())
    return 0 if keep is Keep.results else sum(max(each.values()) for each in rounds.values())


def _stored(config: Config, job: Job, stage: Stage, algo: AlgoConfig) -> tuple[int, int]:
    """Bytes that a job stores of each weight of a model, and how many weights there are; 0 where none is known."""
    model = config.models[job.model]
    if job.algo == REFERENCE:
        return 4 * model.is_trained, model.weights
    adapts = getattr(getattr(algo, "lora", None), "rank", 0) and stores_adapters(algo, config.algos)
    if not algo.trains or (stage.saves == "policy" and adapts):
        return 0, 0
    if stage.saves != "policy" and model.value_path is not None:
        weights = weights_at(model.value_path, model.revisions["value"])
    else:
        weights = count_weights(model)
    if stage.saves == "policy" and algo.draws_to_train:  # whose next round goes on with its optimizer
        return 4 + bytes_per_parameter(Precision.float32, config.training.optimizer)[2], weights
    folds = getattr(getattr(algo, "reward_model", None), "folds", 1)
    return 4 * (folds if stage.saves == "rewards" else 1), weights


def _lasts(config: Config, job: Job) -> bool:
    """Whether a training lasts until its first checkpoint is due."""
    training = config.training
    if training.checkpoint_every_steps:
        return True
    return 0 < training.checkpoint_every_minutes * 60 < job.seconds
