"""Distillation (on-policy, arXiv 2306.13649): train a policy to imitate a guided policy, or a larger model.

The policy draws completions while it trains, and imitates the teacher's distribution over the whole vocabulary at
each of their tokens. A guided teacher is the reference with the value model of another method of the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pipeline.config import schema
from pipeline.config.schema import LARGEST_RATE, SMALLEST_DIVISOR, AlgoConfig, Config, hint, number
from pipeline.errors import JobError
from pipeline.learning.algos import base, parts, policy_config, post_training
from pipeline.learning.algos.policy_config import Sampling
from pipeline.learning.algos.qsharp import QSharpConfig
from pipeline.learning.algos.value_guided import ValueAlgoConfig
from pipeline.learning.choices import Others
from pipeline.learning.models.kinds import HFModelConfig
from pipeline.outputs import formats

OTHER_TOKENS = "its tokens differ from those of the reference, so their probabilities cannot be compared"


@dataclass(kw_only=True)
class DistilledConfig(policy_config.OnlineConfig, policy_config.TaughtConfig):
    """Imitate a guided policy, or a larger model, on the policy's own completions (arXiv 2306.13649)."""

    keeps_logprobs: ClassVar[bool] = False

    teacher: str | None = hint(None, keyed="by the value model or the model that it names")
    """A method of the run that guides, such as `QSharp`: imitate the policy that its last value model guides. Or a
    model with the same tokens: a path with a slash, as `./large`, or a hub id, as `org/name`."""
    eta: float | None = number(
        None,
        at_least=SMALLEST_DIVISOR,
        at_most=1e6,
        hint=", or null for that of the method",
        advice="Smaller is stronger (0.1 is strong, 1 is mild)",
    )
    """Guidance strength of the teacher; null takes that of the method."""
    beta: float = number(1.0, at_least=0, at_most=1)
    """Divergence from the teacher, as of TRL's `DistillationConfig`: 0 is the forward KL, KL(teacher || policy), 1
    the reverse KL; between them it is the generalized Jensen-Shannon divergence."""
    revision: str | None = hint(None, keyed=schema.BY_CONTENT)
    """Commit, tag or branch of a teacher on the hub; null takes the newest."""
    trust_remote_code: bool = False
    """Run Python code that comes with the teacher. Only for models whose code you have read."""
    sampling: Sampling = Sampling.online
    num_generations: int = number(1, at_least=1, at_most=100_000)
    """Completions drawn for each training prompt; TRL's name."""
    learning_rate: float = number(2e-3, above=0, at_most=LARGEST_RATE)

    @property
    def model(self) -> HFModelConfig | None:
        """Settings of a teacher that is a model; None for a method of the run."""
        if "/" not in (self.teacher or ""):
            return None
        return HFModelConfig(
            kind="hf", path=self.teacher, revision=self.revision, trust_remote_code=self.trust_remote_code
        )

    @property
    def guide(self) -> str | None:
        """The method that `teacher` names; None for a model."""
        return None if self.model else self.teacher

    @property
    def compares(self) -> bool:
        """False: completions are compared with the teacher alone."""
        return False

    def problems(self, key: str, config: Config) -> Iterator[str]:
        """Also report a teacher that there is not, or whose distributions have zeros, and settings of rewards."""
        yield from super().problems(key, config)
        if self.sampling is not Sampling.online:
            yield f"{key}.sampling={self.sampling.name}: must be online, as it learns from what it draws itself"
        if self.dynamic_sampling != 1:
            yield f"{key}.dynamic_sampling={self.dynamic_sampling}: must be 1, as no completion is scored"
        if self.model:
            return
        teacher, typed = config.algos.get(self.teacher or ""), f"{key}.teacher={self.teacher}"
        if self.teacher and Path(self.teacher).exists():
            yield f"{typed}: a folder or file here is ./{self.teacher}; without a slash it is a method of the run"
        elif not isinstance(teacher, ValueAlgoConfig) or not teacher.enabled:
            for said in policy_config.TaughtConfig.problems(self, key, config):
                yield f"{said} A model is named by a path or hub id with a slash."
        elif teacher.others is Others.dropped:
            yield (
                f"{typed}: algos.{self.teacher}.others=dropped gives most tokens no probability, which is "
                "infinitely far from any policy. Use kept or offset_zero"
            )
        elif self.eta and isinstance(teacher, QSharpConfig) and any(teacher.inexact(key, [self.eta])):
            yield (
                f"{key}.eta={self.eta:g}: must be nearer to algos.{self.teacher}.eta={teacher.eta:g}, or "
                f"algos.{self.teacher}.atoms={teacher.atoms} more, as labels are split between atoms for that eta"
            )

    def idle(self, setting: str) -> str:
        """Also report settings of the other kind of teacher as unused."""
        if setting == "eta" and self.model:
            return "the teacher is a model that nothing guides"
        if setting in ("revision", "trust_remote_code") and not self.model:
            return "the teacher is a method of the run"
        return super().idle(setting)


class Distilled(post_training.PostTrainingAlgorithms):
    """On-policy distillation; no reward is asked."""

    name: ClassVar[str] = "Distilled"
    config_class: ClassVar[type[AlgoConfig]] = DistilledConfig
    stages: ClassVar[tuple[base.Stage, ...]] = (
        base.FIND,
        replace(
            post_training.TRAIN_POLICY,
            reads=(
                *(base.REFERENCE_TRAIN, base.START_TRAIN, base.TEACHER_TRAIN),
                *(base.Read(base.FIND.name), base.Read("train", "previous")),
            ),
            config=tuple(dict.fromkeys((*post_training.TRAIN, *base.TEXT, "data_collection"))),
            judges=False,
            weights=(*base.WEIGHTS, formats.OPTIMIZER),
            seconds=25.0,
        ),
        post_training.EVALUATE,
        base.METRICS,
    )

    @classmethod
    def stages_with(cls, settings: AlgoConfig) -> tuple[base.Stage, ...]:
        """Leave out finding a model if the teacher is a method of the run."""
        finds = isinstance(settings, DistilledConfig) and settings.model is not None
        return tuple(stage for stage in cls.stages if finds or stage.name != base.FIND.name)

    def __init__(self) -> None:
        super().__init__()
        self._teacher: parts.Teacher | None = None

    def find(self, ctx: base.JobContext) -> None:
        """Store the location of a teacher that is a model; convert a GGUF file or adapters to a whole model."""
        model = ctx.settings(DistilledConfig).model
        assert model is not None
        parts.source.write_reference(model, ctx.out)

    def judge(self, ctx: base.JobContext) -> parts.Judge:
        """Return a function that scores nothing."""
        return lambda _, tokens, __: parts.Scored(np.full(len(tokens), np.nan), {}, *([None] * len(tokens),) * 3)

    def keep(self, ctx: base.JobContext, groups: parts.Groups) -> None:
        """Write the completions."""
        groups.sequences(range(len(groups.tokens)), [0.0] * len(groups.tokens)).save(ctx.out)

    def training_set(
        self, ctx: base.JobContext, model: parts.PreTrainedModel, folders: Sequence[Path]
    ) -> parts.TrainingSet:
        """Return the completions, and the divergence from the teacher."""
        algo, data, columns = ctx.settings(DistilledConfig), parts.Sequences.load(folders), None
        if self._teacher is None:
            self._teacher = self._load_teacher(ctx, algo, model)
        teacher = self._teacher
        known = _width(teacher.model) if teacher.value is None else teacher.value.vocabulary
        if int(data.ids.max(initial=0)) >= known:
            raise JobError(
                f"algos.{ctx.algo}.teacher={algo.teacher}: the policy drew token {data.ids.max()}, which stands "
                f"for no text, and the teacher reads only those below {known}. Take a policy that draws no such "
                "tokens, or a teacher with as many"
            )
        if teacher.value is not None:
            size = 2 * teacher.candidates + 1
            found = post_training.values_of(
                ctx,
                teacher.model,
                data,
                lambda _, batch: teacher.columns(batch).flatten(1),
                width=data.ids.shape[1] * size,
            )
            columns = found.astype(np.float32).reshape(*data.ids.shape, size)
        parts.distillation.note_taught(teacher, data, columns, algo.epochs)
        return parts.distillation.distilled_set(model, data, teacher, columns, algo.beta)

    def _load_teacher(
        self, ctx: base.JobContext, algo: DistilledConfig, student: parts.PreTrainedModel
    ) -> parts.Teacher:
        """Return the teacher: the reference guided by a value model, or another model with the same tokens.

        Raises:
            JobError: The offset of the guidance is not saved, or tokens differ.
        """
        temperature, widths = ctx.config.generation.temperature, [_width(student)]
        if algo.model is not None:
            known = parts.opening.reference_tokenizer(ctx).get_vocab()
            _, model, tokenizer = parts.opening.outside_model(ctx, algo.model)
            if tokenizer.get_vocab() != known:
                raise JobError(f"algos.{ctx.algo}.teacher={algo.teacher}: {OTHER_TOKENS}")
            return parts.Teacher(model, min(*widths, _width(model)), temperature)
        folder = ctx.input(base.TEACHER_TRAIN.name)
        model, value = parts.opening.reference_model(ctx)[0], parts.opening.value_model(ctx, folder)
        saved = formats.read_input(folder, formats.GUIDANCE, formats.read_guidance)
        if saved.offset is None:
            raise JobError(
                f"algos.{ctx.algo}.teacher={algo.teacher}: it makes offsets of values by a rule of its own, which "
                "is not saved with its value model. Its offset() must return a KnownOffset, as those that ship do"
            )
        eta = algo.eta or saved.eta or math.inf
        offset = parts.KnownOffset(saved.offset, eta)
        tilt = parts.Tilt(offset, saved.top_k, saved.min_p, Others[saved.others])
        return parts.Teacher(model, min(*widths, value.vocabulary), temperature, value, tilt)


def _width(model: Any) -> int:
    return int(model.config.get_text_config().vocab_size)
