"""Programs written for W&B's agent, as trials here: W&B's own client, without a login.

What they see in `wandb.config`, and what the sweep has heard of them, is what W&B's agent would give and hear.
"""

import json
import os
from pathlib import Path

import pytest

from tests.integration.test_sweeps import Sweeps, sweeps  # noqa: F401 - a fixture

CONFIG = """
import json, os, sys, wandb
if "--lr=7" in sys.argv:  # it takes settings of its own, and its files go where Lightning's logger has them
    del os.environ["WANDB_SWEEP_PARAM_PATH"]
    wandb.init(config={"lr": 1}, dir=".").log({"val": {"loss": 0.0}})
    sys.exit()
with wandb.init(project="p", config=dict(lr=1.0, optimizer=dict(lr=5, momentum=0.9), epochs=1)) as run:
    config = wandb.config
    for epoch in range(config.epochs):
        run.log({"epoch": epoch, "val": {"loss": config.lr * config.optimizer["lr"] / (epoch + 1)}})
    with open(os.environ["WANDB_DIR"] + "/seen.json", "w") as file:
        json.dump(dict(config), file)
"""


@pytest.fixture(autouse=True)
def _without_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NETRC", *(name for name in os.environ if name.startswith("WANDB_"))):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_a_program_that_reads_wandb_config_alone_is_swept_and_one_that_does_not_has_failed(
    sweeps: Sweeps,  # noqa: F811
) -> None:
    """In front of its own defaults, tables inside of tables; a number as `1e-5` is one."""
    (sweeps.folder / "train.py").write_text(CONFIG)
    sweeps.file(
        "cfg",
        program="train.py",
        metric={"name": "val.loss"},
        parameters={
            "lr": {"values": [1e-5, 7]},
            "epochs": {"value": 3},
            "optimizer": {"parameters": {"lr": {"value": 2}}},
        },
        pipeline={"max_attempts": 1},
    )
    said = sweeps.run("run", "cfg.yaml", "--device", "cpu", "--agents", "2", code=1)
    folder = sweeps.folder / "outputs/cfg/sweep/trials"
    [seen] = [json.loads(path.read_text()) for path in folder.glob("*/seen.json")]
    assert seen == {"lr": 1e-5, "optimizer": {"lr": 2, "momentum": 0.9}, "epochs": 3}
    values = {one["trial"]: one["end"]["value"] for one in sweeps.attempts("cfg")}
    assert values == {0: pytest.approx(2e-5 / 3), 1: None}
    assert said.count("without a login") == 1
    assert "lr=1 where the sweep gave 7" in said
