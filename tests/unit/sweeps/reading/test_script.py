"""What the script of a trial does with W&B, by its text."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.sweeps.reading.script import Script, check_script, read_script, script_notes
from tests.unit.sweeps.reading.test_command import sweep_of

ARGS = ("${interpreter}", "${program}", "${args}")
NO_BOOLEANS = ("${interpreter}", "${program}", "${args_no_boolean_flags}")
NO_ARGS = ("${interpreter}", "${program}", "--epochs=3")


def script(tmp_path: Path, text: str) -> Script:
    (tmp_path / "train.py").write_text(text)
    return read_script(tmp_path / "train.py")


AGENT = """
import wandb
def train():
    with wandb.init() as run:
        run.log({"loss": run.config.lr})
sweep_id = wandb.sweep({"method": "grid"}, project="p")
wandb.agent(sweep_id, function=train, count=3)
"""


@pytest.mark.parametrize(
    ("text", "searches", "function"),
    [
        (AGENT, {"sweep": 6, "agent": 7}, "train"),
        ("import wandb as wb\nwb.agent(wb.sweep({}), main)", {"agent": 2, "sweep": 2}, "main"),
        ("from wandb import agent as run_it\nrun_it('a/b/c')", {"agent": 2}, ""),
        (
            "import wandb\ndef main():\n  for c in x:\n    wandb.agent(i, f)\nif __name__ == 'x':\n  main()",
            {"agent": 4},
            "f",
        ),
        ("import wandb\nif args.sweep:\n  wandb.agent(wandb.sweep({}), f)\nelse:\n  f()", {}, ""),
        ("import wandb\ndef search():\n  wandb.sweep({})\ntrain()", {}, ""),
        ("import other\nother.sweep()\nwandb.log({})", {}, ""),
        ("this is no Python", {}, ""),
    ],
)
def test_a_search_that_a_script_begins_in_any_case(
    tmp_path: Path, text: str, searches: dict[str, int], function: str
) -> None:
    found = script(tmp_path, text)
    assert (found.searches, found.function) == (searches, function)
    sweep = replace(sweep_of(ARGS), folder=tmp_path)
    if not searches:
        check_script(sweep)
        return
    with pytest.raises(ConfigError, match=r"train\.py, line \d+: it calls wandb\.(sweep|agent)"):
        check_script(sweep)


@pytest.mark.parametrize(
    ("text", "command", "told"),
    [
        ("import wandb\nif wandb.run.sweep_id: take(wandb.config)", ARGS, "WANDB_SWEEP_ID: "),
        ("import os, wandb\nif 'WANDB_SWEEP_ID' in os.environ: pass", ARGS, "line 2"),
        ("import wandb\nif sweep: wandb.agent(id, f)\nprint(run.sweep_id)", ARGS, ""),
        ("import wandb\nwandb.init(config=args)\nargs.config", NO_ARGS, "all trials are the same"),
        ("import wandb\nwandb.config = cfg\nprint(f'{wandb.config=}', cfg)", NO_ARGS, "all trials are the same"),
        ("import wandb\nlr = wandb.config.lr", NO_ARGS, ""),
        ("import wandb\nwith wandb.init() as r: lr = r.config['lr']", NO_ARGS, ""),
        ("import wandb\nrun = wandb.init()\nlr = run.config.lr", NO_ARGS, ""),
        ("p.add_argument('-o', '--off', type=bool)", ARGS, "line 1: argparse takes --off=False for true"),
        ("p.add_argument('--on', type=bool)", NO_BOOLEANS, ""),
        ("p.add_argument('--lr', type=bool)", ARGS, ""),
        ("import wandb\nlr = wandb.init(project='p').config.lr", NO_ARGS, ""),
        ("from wandb import init\nuse(init().config)", NO_ARGS, ""),
        ("import wandb\nself.run: Run = wandb.init()\nlr = self.run.config.lr", NO_ARGS, ""),
        ("import wandb\nif run := wandb.init(): use(run.config)", NO_ARGS, ""),
        ("import lightning\nlr = logger.experiment.config['lr']", NO_ARGS, ""),
        ("from wandb import config\nlr = config.lr", NO_ARGS, ""),
        ("import argparse", ARGS, ""),
    ],
)
def test_what_may_keep_parameters_from_a_script_is_told(
    tmp_path: Path, text: str, command: tuple[str, ...], told: str
) -> None:
    (tmp_path / "train.py").write_text(text)
    said = list(script_notes(replace(sweep_of(command), folder=tmp_path), {}))
    assert len(said) == bool(told)
    assert told in "".join(said)


@pytest.mark.parametrize("text", ["import wandb", "from wandb import init", "import wandb.apis", "import other"])
@pytest.mark.parametrize(
    ("mode", "given"), [("disabled", {}), ("disabled", {"WANDB_MODE": "offline"}), ("offline", {})]
)
def test_a_client_that_writes_nothing_is_told_of_before_trials_run(
    tmp_path: Path, text: str, mode: str, given: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(text)
    sweep = replace(sweep_of(ARGS, environment=given), folder=tmp_path)
    told = "".join(script_notes(sweep, {"WANDB_MODE": mode}))
    assert ("WANDB_MODE is disabled" in told) == (mode == "disabled" and not given and text != "import other")
