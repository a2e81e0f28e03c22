"""What of a request is looked at before anything is started, beside its settings."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.commands.request import Request, prepare, with_command
from pipeline.config.schema import RayConfig, TextBackend
from pipeline.engine.workers.on_ray import check_environment
from pipeline.errors import ConfigError, has_package
from pipeline.learning.datasets.base import load_dataset
from pipeline.learning.datasets.prepared import prepare as write_prepared
from pipeline.plan.build import build_plan
from pipeline.plan.models import known_rows, read_sources
from tests.doubles import fake_nvml
from tests.doubles.composing import quick_config


@pytest.mark.parametrize("key", ["output_dir", "execution.store"])
def test_places_where_nothing_can_be_written_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Before a dry run says that all is well, and before anything that is read there is told to be missing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "linked").symlink_to(tmp_path)
    for place in ("notes.txt", "notes.txt/deep/down", "gone", "gone/deep", "/proc/x/y"):
        with pytest.raises(ConfigError, match=rf"^{key}: nothing can be written in .*{place}: .* Set {key} to "):
            prepare(quick_config(["experiment.name=t", "device=cpu", f"{key}={place}"]))
    with pytest.raises(ConfigError, match=r"^experiment\.name: nothing can be written in .*notes\.txt: "):
        prepare(quick_config(["experiment.name=notes.txt", "device=cpu", f"output_dir={tmp_path}"]))
    with pytest.raises(ConfigError, match=rf"^{key}=s3://bucket/x: must be a folder"):
        prepare(quick_config(["experiment.name=t", "device=cpu", f"{key}=s3://bucket/x"]))
    for place in ("linked", "linked/deep", "x/y"):
        assert prepare(quick_config(["experiment.name=t", "device=cpu", f"{key}={place}"])).plan.jobs
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gone", "linked", "notes.txt"]


@pytest.mark.parametrize(
    ("installed", "settings", "said"),
    [
        (False, [], r"needs Ray, which is not installed: pip install .*ray"),
        (True, ["execution.jobs_per_device=2", "execution.ray.resources={GPU: 1}"], "a device of its own"),
        (
            True,
            ["distributed.gpu_ids=[0]", "execution.ray.address=auto"],
            r"Say how many with distributed\.num_gpus",
        ),
        (True, ["execution.ray.address=head"], r"execution\.ray\.address=head: must be auto, host:port"),
    ],
)
def test_what_cannot_be_done_on_ray_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool, settings: list[str], said: str
) -> None:
    monkeypatch.setattr("pipeline.commands.request.has_package", lambda _: installed)
    with pytest.raises(ConfigError, match=said):
        prepare(quick_config(["experiment.name=x", f"output_dir={tmp_path}", "execution.backend=ray", *settings]))


@pytest.mark.skipif(not has_package("ray"), reason="Ray is not installed: pip install -e '.[ray]'")
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"nonsense": 1}, r"^execution\.ray\.runtime_env\.nonsense: .*env_vars"),
        ({"pip": 3}, "str or List"),
        ({"env_vars": {"A": 3}}, "env_vars"),
        ({"working_dir": "/no/such"}, "/no/such is not a valid path"),
    ],
)
def test_what_the_installed_ray_does_not_know_of_an_environment_is_refused(
    asked: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        check_environment(RayConfig(address="head:6379", runtime_env=asked))


def test_a_model_on_a_gpu_without_a_profile_for_it_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_nvml.use(monkeypatch, tmp_path, "one")
    asked = ["experiment.name=t", f"output_dir={tmp_path}", "model=hf", "models.hf.path=owner/name"]
    assert any("profile=a100_80gb" in said for said in prepare(quick_config(asked)).warnings)
    for other in ("profile=h200", "device=cpu"):
        assert not any("profile=a100_80gb" in said for said in prepare(quick_config([*asked, other])).warnings)


def test_a_plan_reckons_with_the_rows_that_there_are(tmp_path: Path) -> None:
    """Before rows are prepared by a look at small files, then by what was counted; keys stay the same."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"prompt": f"{n} + 1 =", "solution": f"{n + 1}"}) + "\n" for n in range(200))
    )
    asked = ["experiment.name=t", f"output_dir={tmp_path}/o", "device=cpu", "algos=[PITA]", "model=hf"]
    asked += ["models.hf.path=owner/some-7B", "dataset=hf", f"datasets.hf.path={rows}"]
    asked += ["datasets.hf.test_size=50", "datasets.hf.validation_size=50"]
    config = quick_config([*asked, "data_collection.prompts_per_round=10000", "execution.shard_size=80"])

    def generated(request: Request) -> list[int]:
        jobs = request.plan.jobs.values()
        return [job.samples for job in jobs if (job.algo, job.stage, job.round) == ("PITA", "generate", 1)]

    looked = prepare(config)
    each = config.data_collection.samples_per_example
    assert generated(looked) == [80 * each, 20 * each]  # and no shards without rows
    assert looked.rows["hf"]["train"] == 100

    def seconds(request: Request) -> float:
        return sum(job.seconds for job in request.plan.jobs.values())

    (prepared,) = (job for job in looked.plan.jobs.values() if job.stage == "prepare")
    folder = looked.store.path(prepared.key)
    folder.mkdir(parents=True)
    write_prepared(load_dataset(config.datasets["hf"]), folder)
    about = json.loads((folder / "dataset.json").read_text())
    about["rows"]["train"] = 90
    (folder / "dataset.json").write_text(json.dumps(about))
    counted = prepare(config)
    assert generated(counted) == [80 * each, 10 * each]
    assert [job.key for job in counted.plan.jobs.values()] == [job.key for job in looked.plan.jobs.values()]
    whole = build_plan(config, weights={"hf": 7 * 10**9})
    assert seconds(counted) < seconds(looked) < 0.2 * seconds(replace(counted, plan=whole))
    known = known_rows(config, looked.store.path)
    whole, some = (build_plan(config, sources=read_sources(config), rows=rows) for rows in (None, known))
    assert len(whole.jobs) > 125 > len(some.jobs) == len(looked.plan.jobs)
    assert {name: job.key for name, job in whole.jobs.items() if name in some.jobs} == {
        name: job.key for name, job in some.jobs.items()
    }
    made = {job.key for job in some.jobs.values()}
    assert made.issuperset(key for job in some.jobs.values() for keys in job.inputs.values() for key in keys)


def test_a_chosen_backend_stands_in_all_that_repeats_the_run(tmp_path: Path) -> None:
    given = ["experiment.name=t", f"output_dir={tmp_path}", "device=cpu"]
    asked = [*given, "generation.backend=auto"]
    found, plain = prepare(quick_config(asked), asked), prepare(quick_config(given), given)
    chosen = "generation.backend=own"
    assert chosen in found.given
    assert chosen in with_command(found, ["run_parallel.py", *asked]).command
    assert not [word for word in (*found.given, *with_command(found, asked).command) if "auto" in word]
    assert found.asked is not None
    assert found.asked.generation.backend is TextBackend.own
    assert {request.config.generation.backend for request in (found, plain)} == {TextBackend.own}
    assert {job.key for job in found.plan.jobs.values()} == {job.key for job in plain.plan.jobs.values()}
    assert with_command(plain, given).command == tuple(given)
