"""The settings of a sweep's runs of this package, read before anything of the sweep is begun."""

from __future__ import annotations

from pathlib import Path

import pipeline
from pipeline.commands.trial import COMPARED, OBJECTIVE
from pipeline.config.checks import check_config
from pipeline.config.load import load_config
from pipeline.config.schema import Config
from pipeline.errors import ConfigError, known_names
from pipeline.learning.evaluation.metrics import metric_names
from pipeline.sweeps.agents.turn import NUM_GPUS
from pipeline.sweeps.reading.command import overrides_of
from pipeline.sweeps.reading.parameters import PROGRAM, SPLIT
from pipeline.sweeps.searching.searches import make_search
from pipeline.sweeps.spec import Sweep


def check_settings(sweep: Sweep) -> None:
    """Refuse parameters with which the first run would be refused, and a metric that it would not tell.

    A sweep that has begun keeps its parameters, so a name that is misspelt would cost it its name too.

    Raises:
        ConfigError: Says what is wrong with which setting, or with the metric.
    """
    program = Path(pipeline.__file__).parents[1] / PROGRAM
    words = (sweep.program, *sweep.command)
    if not any(Path(word).name == PROGRAM and (sweep.folder / word).resolve() == program for word in words):
        return  # not a run of this very package: what its settings are is not known
    first = make_search(sweep).ask([])
    if first is None:
        return
    given = {name: value for name, value in first.items() if name != NUM_GPUS}
    decided = {"experiment.name": sweep.name, SPLIT: "validation"}
    try:
        check_config(config := load_config(overrides_of(given | decided)))
    except ConfigError as error:
        raise ConfigError(f"the first trial would be refused: {error}") from error
    if sweep.metric is not None:
        _check_metric(sweep.metric.name, config)


def _check_metric(name: str, config: Config) -> None:
    """Refuse a metric that no trial would tell, before one is run for nothing.

    Algorithms of the user's own may measure what they like, and so may the parts of rewards, `rewards/NAME`, and
    strengths of guidance, `reward/eta=0.1`, be called anything.

    Raises:
        ConfigError: Says which there are.
    """
    own = any(algo.enabled and algo.class_path is not None for algo in config.algos.values())
    if own or ("/" in name and COMPARED not in name):
        return
    if name not in (known := [OBJECTIVE, *metric_names(config.evaluation)]):
        near = known_names(name.partition(COMPARED)[0], known)
        raise ConfigError(f"metric.name: no trial would tell a metric '{name}'.{near} See docs/evaluation.md")
