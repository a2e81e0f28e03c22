"""A stored output answers for a job while its key agrees, so code that writes other bytes needs other keys."""

import json

import pytest

from tests import golden


def entry(digest: str, version: int = 1, reads: tuple[str, ...] = ()) -> golden.Entry:
    return {"digest": digest, "versions": {"TRAINING": version}, "reads": list(reads)}


def test_what_stages_write_changes_only_with_a_version_of_their_code() -> None:
    before, now = json.loads(golden.GOLDEN.read_text()), golden.measure()
    found = golden.differences(before["entries"], now["entries"])
    if before["arithmetic"] != now["arithmetic"]:
        # Floats may differ for no change of ours; what is made without any must be the same here too.
        found = {name: words for name, words in found.items() if not name.startswith("stage ")}
        assert not found, found
        pytest.skip("the digests were made with another arithmetic, see the head of tests/golden.py")
    assert not found, "\n".join(
        [*(f"{name} {words}" for name, words in found.items()), "then: python -m tests.golden --write"]
    )


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
