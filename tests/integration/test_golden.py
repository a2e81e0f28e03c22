"""A stored output answers for a job while its key agrees, so code that writes other bytes needs other keys."""

import json
from pathlib import Path

import pytest

from tests import golden


def entry(digest: str, version: int = 1, reads: tuple[str, ...] = ()) -> golden.Entry:
    return {"digest": digest, "versions": {"TRAINING": version}, "reads": list(reads)}


def measured(entries: dict[str, golden.Entry], probe: str = "x86") -> golden.Measured:
    return {"arithmetic": {"probe": probe}, "entries": entries}


def test_what_stages_write_changes_only_with_a_version_of_their_code(tmp_path: Path) -> None:
    # Here, as another process would first have to import all that this one has.
    before, now = json.loads(golden.GOLDEN.read_text()), golden.measure_here(tmp_path)
    found = golden.compare(before, now)
    assert not found, "\n".join(
        [*(f"{name} {words}" for name, words in found.items()), "then: python -m tests.golden --write"]
    )
    if before["arithmetic"] != now["arithmetic"]:
        pytest.skip("what stages write was not compared: another arithmetic, see the head of tests/golden.py")


def test_another_arithmetic_excuses_stages_and_other_packages_a_reward() -> None:
    before = measured({"stage a": entry("1"), "rows b": entry("1"), "reward c": entry("1")})
    after = measured({"stage a": entry("2"), "rows b": entry("2"), "reward c": entry("2")}, "arm")
    assert set(golden.compare(before, after)) == {"rows b", "reward c"}
    before["entries"]["reward c"]["packages"] = {"sympy": "1"}
    after["entries"]["reward c"]["packages"] = {"sympy": "2", "another": "1"}
    assert set(golden.compare(before, after)) == {"rows b"}


@pytest.mark.parametrize(
    ("after", "code"),
    [
        (measured({"stage a": entry("2", version=2)}), 0),
        (measured({"stage a": entry("2")}), 1),
        (measured({"stage a": entry("2")}, "arm"), 1),
        (measured({"stage b": entry("2")}), 0),
    ],
)
def test_when_digests_are_written(
    after: golden.Measured, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "golden.json"
    before = json.dumps(measured({"stage a": entry("1")}))
    file.write_text(before)
    monkeypatch.setattr(golden, "GOLDEN", file)
    monkeypatch.setattr(golden, "measure_here", lambda _: after)
    assert golden.main(["--write"]) == code
    assert (file.read_text() == before) == bool(code)


def test_other_bytes_under_the_same_versions_are_told() -> None:
    found = golden.differences({"a": entry("1")}, {"a": entry("2")})
    assert found == {"a": f"{golden.UNCOVERED}: raise one of TRAINING"}


def test_a_raised_version_asks_for_new_digests_and_covers_what_reads_its_output() -> None:
    before = {"a": entry("1"), "b": entry("1", reads=("a",)), "c": entry("1", reads=("b",))}
    after = {"a": entry("2", version=2), "b": entry("2", reads=("a",)), "c": entry("2", reads=("b",))}
    assert golden.differences(before, after) == {"a": "has other versions"}


def test_the_first_stage_that_changed_is_the_one_to_raise() -> None:
    before = {"a": entry("1"), "b": entry("1", reads=("a",))}
    found = golden.differences(before, {"a": entry("2"), "b": entry("2", reads=("a",))})
    assert found["a"].endswith("raise one of TRAINING")
    assert found["b"].endswith("as did a, which it reads")
