"""A stored output answers for a job while its key agrees, so code that writes other bytes needs other keys."""

import json
from pathlib import Path

import pytest

from tests import golden


def entry(digest: str, version: int = 1, reads: tuple[str, ...] = ()) -> golden.Entry:
    return {"digest": digest, "versions": {"TRAINING": version}, "reads": list(reads)}


def measured(entries: dict[str, golden.Entry], probe: str = "x86") -> golden.Measured:
    return {"arithmetic": {"probe": probe}, "entries": entries}


@pytest.mark.parametrize(
    "whole", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["without repeats", "whole"]
)
def test_what_stages_write_changes_only_with_a_version_of_their_code(tmp_path: Path, whole: bool) -> None:
    # Here, as another process would first have to import all that this one has.
    before, now = json.loads(golden.GOLDEN.read_text()), golden.measure_here(tmp_path, whole=whole)
    if not whole:
        kept = {name: entry for name, entry in before["entries"].items() if not golden.repeats(name)}
        assert 20 < len(before["entries"]) - len(kept) < 40
        before["entries"] = kept
    found, _ = golden.compare(before, now)
    assert not found, "\n".join(
        [*(f"{name} {words}" for name, words in found.items()), "then: python -m tests.golden --write"]
    )
    if before["arithmetic"] != now["arithmetic"]:
        pytest.skip("what stages write was not compared: another arithmetic, see the head of tests/golden.py")


def test_another_arithmetic_excuses_stages_and_nothing_else() -> None:
    before = measured({"stage a": entry("1"), "rows b": entry("1"), "reward c": entry("1")})
    after = measured({"stage a": entry("2"), "rows b": entry("2"), "reward c": entry("2")}, "arm")
    found, reasons = golden.compare(before, after)
    assert set(found) == {"rows b", "reward c"}
    assert [reason for reason in reasons if not reason.startswith(golden.UNSURE)]


def test_what_cannot_be_compared_is_not_overwritten_by_the_way() -> None:
    _, reasons = golden.compare(measured({"stage a": entry("1")}), measured({"stage a": entry("1")}, "arm"))
    assert [reason.split(":")[0] for reason in reasons] == [golden.UNSURE]


def test_a_reward_is_compared_where_the_packages_are_the_same() -> None:
    one, other = ({**entry(digest), "packages": {"sympy": digest}} for digest in "12")
    found, reasons = golden.compare(measured({"reward a": one}), measured({"reward a": other}))
    assert not found
    assert reasons
    same = {**other, "packages": one["packages"]}
    assert golden.compare(measured({"reward a": one}), measured({"reward a": same}))[0]


def test_a_new_name_does_not_hide_changed_bytes() -> None:
    found, reasons = golden.compare(measured({"stage a": entry("1")}), measured({"stage b": entry("2")}))
    assert found == {"stage a": golden.GONE, "stage b": "is new"}
    assert reasons == [f"{golden.UNSURE}: stage a {golden.GONE}"]


@pytest.mark.parametrize(
    ("arguments", "after", "code", "written"),
    [
        (["--write"], measured({"stage a": entry("2", version=2)}), 0, True),
        (["--write"], measured({"stage a": entry("2")}), 1, False),
        (["--write", "--all"], measured({"stage a": entry("2")}), 1, False),
        (["--write"], measured({"stage a": entry("2")}, "arm"), 1, False),
        (["--write", "--all"], measured({"stage a": entry("2")}, "arm"), 0, True),
        (["--write"], measured({"stage b": entry("2")}), 1, False),
        (["--write", "--all"], measured({"stage b": entry("2")}), 0, True),
        ([], measured({"stage a": entry("1")}), 0, False),
    ],
)
def test_when_digests_are_written(
    arguments: list[str],
    after: golden.Measured,
    code: int,
    written: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "golden.json"
    before = json.dumps(measured({"stage a": entry("1")}))
    file.write_text(before)
    monkeypatch.setattr(golden, "GOLDEN", file)
    monkeypatch.setattr(golden, "measure", lambda: after)
    assert golden.main(arguments) == code
    assert (file.read_text() != before) == written


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


def test_nothing_changed_and_nothing_is_told() -> None:
    assert golden.differences({"a": entry("1")}, {"a": entry("1")}) == {}
