"""A reader is told when results rest on outputs that were not all made alike."""

from pathlib import Path

from pipeline.engine.store.store import Store
from pipeline.plan.graph import Job
from pipeline.runs.origin import UNKNOWN, Maker, collect_makers


def stored(store: Store, key: str, **about: str) -> Job:
    folder = store.begin(store.scratch("run"), key, 1)
    (folder / "file").write_text("x")
    store.commit(key, folder, {"job": "a", **about})
    return Job(id=f"job {key[:1]}", key=key, entry="x:y", payload={}, samples=1)


def test_outputs_are_counted_by_what_made_them(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = {"arithmetic": "portable", "pipeline": "1", "torch": "2.13.0", "transformers": "5"}
    jobs = [
        stored(store, "a" * 40, **made),
        stored(store, "b" * 40, **made),
        stored(store, "c" * 40, **{**made, "torch": "2.12.0"}),
        stored(store, "d" * 40),
        Job(id="unmade", key="e" * 40, entry="x:y", payload={}, samples=1),
    ]
    assert collect_makers(store, [*jobs, jobs[0]]) == [
        Maker("portable", "1", "2.12.0", "5", 1),
        Maker("portable", "1", "2.13.0", "5", 2),
        Maker(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, 1),
    ]
