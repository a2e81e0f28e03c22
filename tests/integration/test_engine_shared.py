"""Machines with stores of their own that share one: what is there is not made, and all have the same bytes."""

import secrets
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.config.schema import Backend
from pipeline.engine.store.shared import Objects, SharedStore, connect
from pipeline.engine.store.store import Verified
from pipeline.plan.graph import Job
from pipeline.runs.loaded import LoadedRun, choose_run
from pipeline.runs.report.status import glance_at
from tests.doubles.engine import Engine, job, key
from tests.doubles.small_runs import results, run_here

CHAIN = [job("a"), job("b", needs=["a"]), job("c", needs=["b"])]
WIDE = [job(f"j{number}") for number in range(8)]


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "shared").mkdir()
    return f"file://{tmp_path}/shared"


@pytest.fixture
def objects(url: str) -> Objects:
    return Objects(url)


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[], Engine]:
    def make() -> Engine:
        root = tmp_path / secrets.token_hex(4)
        (root / "store").mkdir(parents=True)
        return Engine(root)

    return make


def opened(objects: Objects, engine: Engine, keys: Collection[str] = ()) -> SharedStore:
    return SharedStore(objects, Verified(engine.store, engine.root / "verified"), keys)


def run(engine: Engine, url: str, *jobs: Job) -> SharedStore:
    """Fetch what is there of a plan, and run the rest; the use of the shared store, which is over."""
    objects, keys, _ = connect(url)
    shared = opened(objects, engine, keys)
    shared.fetch_all({job.key for job in jobs if not engine.store.has(job.key)} & keys)
    stored = [job.id for job in jobs if engine.store.has(job.key)]
    outcome = engine.run(*jobs, backend=Backend.inline, workers=1, shared=shared, stored=stored)
    assert outcome.failures() == []
    assert shared.conclude() == ""
    return shared


def ran(engine: Engine) -> set[str]:
    return {event["job"] for event in engine.events("JobFinished")}


def values(engine: Engine, *names: str) -> list[bytes]:
    for name in names:
        assert engine.store.has(key(name))
    return [(engine.store.path(key(name)) / "manifest.json").read_bytes() for name in names]


def outputs(engine: Engine) -> list[bytes]:
    """The files of all outputs, without their manifests."""
    found = (path for path in engine.store.root.glob("??/*/*") if path.name != "manifest.json")
    return [path.read_bytes() for path in found]


def test_what_one_machine_made_another_only_fetches(url: str, machine: Callable[[], Engine]) -> None:
    one, other = machine(), machine()
    run(one, url, *CHAIN)
    session = run(other, url, *CHAIN)
    assert (ran(one), ran(other)) == ({"a", "b", "c"}, set())
    assert session.traffic.fetched == 3
    assert session.traffic.fetched_bytes == sum(map(len, outputs(other)))
    assert values(one, "a", "b", "c") == values(other, "a", "b", "c")


def test_one_that_is_bad_there_is_made_again_with_what_it_needs(
    url: str, objects: Objects, machine: Callable[[], Engine]
) -> None:
    one, other = machine(), machine()
    run(one, url, *CHAIN[:2])
    entry = opened(objects, one).entry(key("b"))
    assert entry
    objects._ask("pipe_file", f"files/{key('b')}/{entry.upload}/0000000", b"torn")
    run(other, url, *CHAIN)
    assert ran(other) == {"b", "c"}
    third = machine()
    run(third, url, *CHAIN)
    assert ran(third) == set()
    assert values(one, "a", "b") == values(third, "a", "b")


def test_of_two_at_once_the_first_upload_of_each_output_counts(url: str, machine: Callable[[], Engine]) -> None:
    engines = [machine(), machine()]
    with ThreadPoolExecutor(2) as pool:
        sessions = list(pool.map(lambda engine: run(engine, url, *WIDE), engines))
    made = [ran(engine) for engine in engines]
    assert made[0] | made[1] == {each.id for each in WIDE}
    assert sum(session.traffic.uploaded for session in sessions) == len(WIDE)
    names = [each.id for each in WIDE]
    assert values(engines[0], *names) == values(engines[1], *names)


def test_a_damaged_output_here_is_had_from_there(url: str, machine: Callable[[], Engine]) -> None:
    one = machine()
    run(one, url, *CHAIN[:1])
    path = next(path for path in one.store.path(key("a")).iterdir() if path.name != "manifest.json")
    path.write_bytes(b"changed")
    run(one, url, *CHAIN[:2])
    assert ran(one) == {"b"}
    assert one.store.has(key("a"))


def in_line(said: str) -> str:
    return " ".join(said.split())


def test_an_experiment_on_two_machines(tmp_path: Path, url: str) -> None:
    """The whole command: the second machine computes nothing, says so before, and has the same results."""
    small = ["algos=[PITA]", "rounds_of_training=1", "models.tiny.steps=2", "execution.shard_size=1000"]
    one, other = tmp_path / "one", tmp_path / "other"
    said = run_here(one, *small, f"execution.shared_store={url}")
    assert "shared store: 8 outputs uploaded (" in said
    run = LoadedRun(choose_run(one, "t"))
    assert (run.state, glance_at(LoadedRun(run.folder), 0)["state"]) == ("done", "done")
    said = run_here(other, *small, f"execution.shared_store={url}", "dry_run=true")
    assert "8 jobs: 8 stored (2 of them in the shared store, to be fetched), 0 to run on" in in_line(said)
    assert "2 of them in the shared store, to be fetched" in in_line(said)
    said = run_here(other, *small, f"execution.shared_store={url}")
    assert "fetching 2 outputs from the shared store" in said
    assert "all 8 jobs are stored; nothing to run" in said
    assert "shared store: 2 outputs fetched (" in said
    assert results(one) == results(other)
