"""What a program that uses W&B finds in a trial; the client itself is in integration/test_wandb_trials.py."""

from pathlib import Path

import pytest

from pipeline.sweeps.agents.wandb_run import has_key, wandb_variables
from pipeline.sweeps.folder import TrialFolder

KEY = "0123456789" * 4


@pytest.mark.parametrize(
    ("environment", "netrc", "settings", "found"),
    [
        ({}, "", "", False),
        ({"WANDB_API_KEY": KEY}, "", "", True),
        ({"WANDB_API_KEY": ""}, "", "", False),
        ({"WANDB_IDENTITY_TOKEN_FILE": "/t"}, "", "", True),
        ({}, f"machine api.wandb.ai login user password {KEY}", "", True),
        ({}, f"machine example.org login user password {KEY}", "", False),
        ({"WANDB_BASE_URL": "http://example.org:8080"}, "machine example.org:8080 login u password p", "", True),
        ({"WANDB_BASE_URL": "http://example.org"}, "machine api.wandb.ai login u password p", "", False),
        ({}, "machine w.org login u password p", "[default]\nbase_url = https://w.org", True),
        ({}, "", f"[default]\napi_key = {KEY}", True),
        ({}, "", "[default]\nmode = disabled", True),
        ({}, "no such words \x00", "no settings", False),
    ],
)
def test_a_login_is_looked_for_where_wandb_looks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    netrc: str,
    settings: str,
    found: bool,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    if netrc:
        (tmp_path / ".netrc").write_text(netrc)
        (tmp_path / ".netrc").chmod(0o600)
    if settings:
        (tmp_path / ".config/wandb").mkdir(parents=True)
        (tmp_path / ".config/wandb/settings").write_text(settings)
    assert has_key(environment) is found
    mode = wandb_variables(TrialFolder(tmp_path), "fit", environment).get("WANDB_MODE")
    assert mode == (None if found else "offline")


def test_what_a_user_has_set_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    given = {"WANDB_MODE": "online", "WANDB_RUN_GROUP": "mine"}
    variables = wandb_variables(TrialFolder(tmp_path), "fit", given)
    assert not given.keys() & variables.keys()
    assert "WANDB_SWEEP_PARAM_PATH" in variables
