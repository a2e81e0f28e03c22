"""A backend that cannot serve a request is refused before anything starts, and keys name one that does."""

from pipeline.config.schema import Config
from pipeline.plan.build import build_plan
from tests.doubles.composing import quick_config

PINS = ("torch==2.13.0", "transformers<5.18.0,>=5.10.4", 'torch==1.0; extra == "old"', "numpy")


def request(backend: str, *settings: str) -> Config:
    return quick_config(["experiment.name=t", f"generation.backend={backend}", *settings])


def test_keys_name_the_backend_of_what_it_draws() -> None:
    """Not where a method guides, though it may draw from the reference as it is; nor where nothing is drawn."""
    plans = {name: build_plan(request(name, "algos=[PITA,DPO,BestOfN]")).jobs for name in ("own", "vllm")}
    named = set()
    for job in plans["own"].values():
        others = {name: plans[name][job.id] for name in ("vllm",)}
        for name, other in others.items():
            told = other.determined_by["config"].get("generation", {}).get("backend")
            given = other.payload["config"].get("generation", {}).get("backend")
            assert (told, given) in [(None, None), (None, "own"), (name, name)]
            if told:
                named.add((job.algo, job.stage))
        if job.algo == "PITA" and job.stage in ("generate", "train"):
            assert {other.key for other in others.values()} == {job.key}
        if (job.algo, job.stage) in named:
            assert len({job.key, *(other.key for other in others.values())}) == 2
    assert named == {
        ("reference", "evaluate"),
        ("DPO", "generate"),
        ("DPO", "evaluate"),
        ("BestOfN", "generate"),
        ("BestOfN", "evaluate"),
    }
