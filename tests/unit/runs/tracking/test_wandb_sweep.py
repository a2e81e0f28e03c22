"""What W&B's agent says of a run, and what a run leaves for it."""

from pathlib import Path

from pipeline.runs.tracking.wandb_sweep import (
    JudgedRound,
    SweepTrial,
    leave_values,
    left_values,
    own_runs,
    sweep_trial,
    values_file,
)

AGENT = {"WANDB_SWEEP_ID": "s", "WANDB_RUN_ID": "r", "WANDB_SWEEP_PARAM_PATH": "/p.yaml", "WANDB_PROJECT": "sums"}


def test_a_trial_is_what_an_agent_has_started() -> None:
    assert sweep_trial(AGENT) == SweepTrial(id="r", sweep="s", project="sums")
    assert sweep_trial({"WANDB_RUN_ID": "r"}) is None
    assert sweep_trial({"WANDB_SWEEP_ID": "s", "WANDB_RUN_ID": ""}) is None


def test_runs_of_chains_have_nothing_of_one_run() -> None:
    kept = {"WANDB_API_KEY": "k", "WANDB_ENTITY": "me", "WANDB_TAGS": "a", "HOME": "/h"}
    of_one = dict.fromkeys(
        ["WANDB_RUN_ID", "WANDB_RESUME", "WANDB_RESUME_FROM", "WANDB_NAME", "WANDB_SERVICE"], "x"
    )
    assert own_runs({**kept, **of_one, "WANDB_SWEEP_PARAM_PATH": "/p.yaml"}) == kept
    parameters = {name: AGENT[name] for name in ("WANDB_SWEEP_PARAM_PATH", "WANDB_PROJECT")}
    assert own_runs({**kept, **of_one, **AGENT}) == {**kept, **parameters}


def test_values_are_left_a_line_for_each_round(tmp_path: Path) -> None:
    assert left_values(tmp_path) == []
    leave_values(tmp_path, 1, {"objective": 0.5})
    leave_values(tmp_path, 2, {"objective": float("nan")})
    with values_file(tmp_path).open("a") as file:
        file.write('{"round": 3, "va')
    assert left_values(tmp_path) == [
        JudgedRound(round=1, values={"objective": 0.5}),
        JudgedRound(round=2, values={"objective": None}),
    ]
