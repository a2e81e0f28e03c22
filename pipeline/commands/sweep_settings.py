"""The settings of a sweep's runs of this package, read before anything of the sweep is begun."""

from __future__ import annotations

from pathlib import Path

import pipeline
from pipeline.config.checks import check_config
from pipeline.config.load import load_config
from pipeline.errors import ConfigError
from pipeline.sweeps.agents.turn import NUM_GPUS
from pipeline.sweeps.reading.command import overrides_of
from pipeline.sweeps.reading.own import PROGRAM, SPLIT
from pipeline.sweeps.searching.searches import make_search
from pipeline.sweeps.spec import Sweep


def check_settings(sweep: Sweep) -> None:
    """Refuse parameters with which the first run would be refused.

    A sweep that has begun keeps its parameters, so a name that is misspelt would cost it its name too.

    Raises:
        ConfigError: Says what is wrong with which setting.
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
        check_config(load_config(overrides_of(given | decided)))
    except ConfigError as error:
        raise ConfigError(f"the first trial would be refused: {error}") from error
