"""A run becomes a bundle that others check: every number follows from its outcomes, and its jobs can run again."""

import errno
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.runs.bundle import CONFIG, ORIGIN, OUTPUTS, PLAN, RESULTS, Bundle, write_bundle
from tests.doubles.browser import CHROMIUM, browser
from tests.doubles.small_runs import INLINE, calm_run, run_here, with_reference


def command(*words: str, code: int = 0, given: str | None = None) -> str:
    done = CliRunner().invoke(app, list(words), input=given)
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a finished run of PITA and QSharp, left as it is."""
    return calm_run(tmp_path_factory)


@pytest.fixture(scope="module")
def whole(outputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of it, with all that one can have."""
    path = tmp_path_factory.mktemp("bundle") / "t.tar"
    command("bundle", "t", "--output-dir", str(outputs), "--to", str(path), "--yes")
    return path


def members(path: Path) -> dict[str, bytes]:
    with Bundle(path) as bundle:
        return {name: bundle.read(name) for name in bundle.contents.files}


def changed(path: Path, to: Path, change: Callable[[dict[str, Any]], None], name: str = RESULTS) -> str:
    """Write a bundle with another member, whose sums are right, to be verified."""
    every = members(path)
    part = json.loads(every[name])
    change(part)
    write_bundle(to, {**every, name: json.dumps(part, indent=1).encode() + b"\n"})
    return str(to)


def test_it_is_shown_before_it_is_written_and_the_same_run_gives_the_same_bytes(
    outputs: Path, whole: Path, tmp_path: Path
) -> None:
    options = ("bundle", "t", "--output-dir", str(outputs))
    assert "completions" in command(*options)
    to = tmp_path / "x.tar"
    command(*options, "--to", str(to), given="n\n", code=1)
    assert not to.exists()
    command(*options, "--to", str(to), given="y\n")
    assert to.read_bytes() == whole.read_bytes()


def test_nothing_in_it_names_a_folder_of_the_machine(outputs: Path, whole: Path) -> None:
    every = b"".join(members(whole).values())
    assert str(outputs).encode() not in every
    assert str(Path(__file__).parents[2]).encode() not in every


@pytest.mark.parametrize("left_out", [[], ["samples"], ["samples", "settings"]], ids=["whole", "no texts", "bare"])
def test_every_number_follows_from_the_outcomes(outputs: Path, tmp_path: Path, left_out: list[str]) -> None:
    path = str(tmp_path / "x.tar")
    options = [word for part in left_out for word in ("--without", part)]
    command("bundle", "t", "--output-dir", str(outputs), "--to", path, "--yes", *options)
    assert "follow from the outcomes" in command("verify", path)
    with Bundle(Path(path)) as bundle:
        samples = [one for name, _, file in bundle.outcomes if "samples" in file for one in bundle.samples(name)]
    assert samples
    assert any(one.completion for one in samples) is ("samples" not in left_out)


def better(part: dict[str, Any], field: str) -> None:
    row = next(row for row in part if isinstance(row.get(field), float))
    row[field] += 0.01


TAMPERED: dict[str, Callable[[dict[str, Any]], None]] = {
    "a value of a chain": lambda results: better(results["rows"], "value"),
    "an end of an interval": lambda results: better(results["rows"], "ci_high"),
    "a number of a method": lambda results: better(results["pooled"], "value"),
    "a difference": lambda results: better(results["pooled"], "difference"),
    "a p-value": lambda results: results["comparisons"][0].update(p=0.001),
    "what an interval covers": lambda results: results["pooled"][0].update(over="seeds"),
    "a number of prompts": lambda results: results["rows"][0].update(n=5000),
    "a bound": lambda results: results.update(bounded=["PITA"]),
    "a teacher": lambda results: results.update(teachers={"PITA": "QSharp"}),
    "the level": lambda results: results.update(confidence=0.5),
    "a row left out": lambda results: results["pooled"].pop(),
    "a chain left out": lambda results: results.update(rows=[r for r in results["rows"] if r["algo"] != "QSharp"]),
    "a row added": lambda results: results["rows"].append({**results["rows"][0], "algo": "Mine"}),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_another_number_in_the_results_is_found(whole: Path, tmp_path: Path, what: str) -> None:
    path = changed(whole, tmp_path / "x.tar", TAMPERED[what])
    assert "NOT VERIFIED" in command("verify", path, code=1)


def outcome(path: Path, end: str = "samples.jsonl") -> str:
    return next(name for name in sorted(members(path)) if name.endswith(end))


@pytest.mark.parametrize("is_known", [False, True], ids=["sum of its run", "sum altered too"])
def test_other_outcomes_are_found(whole: Path, tmp_path: Path, is_known: bool) -> None:
    every, name = members(whole), outcome(whole)
    lines = [json.loads(line) for line in every[name].splitlines()]
    for line in lines:
        line.update(reward=1.0 - line["reward"], correct=not line["correct"])
    every[name] = "".join(json.dumps(line) + "\n" for line in lines).encode()
    if is_known:
        outputs, (_, key, file) = json.loads(every[OUTPUTS]), name.split("/", 2)
        write_bundle(tmp_path / "y.tar", every)
        with Bundle(tmp_path / "y.tar") as bundle:
            entry = bundle.contents.files[name]
        outputs[key]["files"][file] = {"size": entry.size, "sha256": entry.sha256}
        every[OUTPUTS] = json.dumps(outputs).encode()
    write_bundle(tmp_path / "x.tar", every)
    assert "is recorded" in command("verify", str(tmp_path / "x.tar"), code=1)


def test_what_has_no_outcomes_is_not_taken_for_checked(whole: Path, tmp_path: Path) -> None:
    every, name = members(whole), outcome(whole, "samples.jsonl")
    folder = name.rpartition("/")[0]
    write_bundle(tmp_path / "x.tar", {each: data for each, data in every.items() if not each.startswith(folder)})
    assert "not checked" in command("verify", str(tmp_path / "x.tar"), code=1)


def relabelled(plan: dict[str, Any]) -> None:
    for job in plan["jobs"]:
        job["algo"] = {"PITA": "QSharp", "QSharp": "PITA"}.get(job["algo"], job["algo"])


def redirected(plan: dict[str, Any]) -> None:
    job = next(job for job in plan["jobs"] if job["stage"] == "metrics" and job["inputs"].get("evaluate@previous"))
    job["inputs"]["reference.evaluate"] = job["inputs"]["evaluate@previous"]


def reseeded(plan: dict[str, Any]) -> None:
    for section in plan["sections"].values():
        if "evaluation" in section:
            section["evaluation"]["num_samples"] = 64


@pytest.mark.parametrize("change", [relabelled, redirected, reseeded])
def test_another_plan_is_found_by_its_keys(
    whole: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    assert "key does not follow" in command("verify", changed(whole, tmp_path / "x.tar", change, PLAN), code=1)


def test_other_settings_of_the_statistics_contradict_the_keys(whole: Path, tmp_path: Path) -> None:
    every = members(whole)
    config = yaml.safe_load(every[CONFIG])
    config["evaluation"]["confidence"] = 0.5
    write_bundle(tmp_path / "x.tar", {**every, CONFIG: yaml.safe_dump(config).encode()})
    assert "evaluation.confidence" in command("verify", str(tmp_path / "x.tar"), code=1)


def test_jobs_run_again_to_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    # The reference alone, which takes least: its seed of the choice is looked for.
    words = ("--rerun", "0.01", "device=cpu", INLINE, "--in", str(tmp_path / "again"))
    for seed in range(100):
        if chosen(whole, seed).endswith("reference/evaluate/000"):
            break
    said = command("verify", str(whole), *words, "--seed", str(seed))
    assert re.search(r"run again: 2 of 2 jobs that ran again have the recorded bytes", said)
    outputs = changed(whole, tmp_path / "x.tar", other_sums, OUTPUTS)
    said = command("verify", outputs, *words[:-1], str(tmp_path / "once more"), "--seed", str(seed), code=1)
    assert "other bytes than recorded" in said


def chosen(path: Path, seed: int) -> str:
    from pipeline.commands.bundle import _How, _targets
    from pipeline.terminal.console import make_console

    with Bundle(path) as bundle:
        how = _How(share=0.01, seed=seed, settings=(), trusts_code=False)
        return _targets(bundle, how, make_console())[0]


def other_sums(outputs: dict[str, Any]) -> None:
    for made in outputs.values():
        for name, entry in made["files"].items():
            if name.endswith(".safetensors"):
                entry["sha256"] = "0" * 64


def test_a_request_that_is_another_one_here_does_not_run(whole: Path, outputs: Path, tmp_path: Path) -> None:
    again = ("--rerun", "0.01", "device=cpu", INLINE)
    assert "another job here" in command("verify", str(whole), *again, "models.tiny.steps=41", code=2)
    bare = str(tmp_path / "bare.tar")
    command("bundle", "t", "--output-dir", str(outputs), "--to", bare, "--yes", "--without", "settings")
    assert "nothing of it can run again" in command("verify", bare, *again, code=2)
    every = members(whole)
    config = yaml.safe_load(every[CONFIG])
    config["algos"]["PITA"]["class_path"] = "os.path.join"
    write_bundle(tmp_path / "x.tar", {**every, CONFIG: yaml.safe_dump(config).encode()})
    assert "which is code" in command("verify", str(tmp_path / "x.tar"), *again, code=2)


@pytest.mark.parametrize(("field", "name"), [("model", "large"), ("dataset", "gsm8k"), ("reference", 5)])
def test_under_another_name_nothing_runs_again(whole: Path, tmp_path: Path, field: str, name: str | int) -> None:
    path = tmp_path / "x.tar"

    def renamed(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row.get(field) is not None:
                row[field] = name

    changed(whole, path, lambda plan: renamed(plan["jobs"]), PLAN)
    changed(path, path, lambda results: [renamed(part) for part in results.values() if _is_rows(part)] and None)
    assert "is recorded under another" in command(
        "verify", str(path), "--rerun", "0.01", "device=cpu", INLINE, code=2
    )


def _is_rows(part: object) -> bool:
    return isinstance(part, list) and all(isinstance(row, dict) for row in part)


def test_numbers_of_code_that_does_not_ship_are_not_taken_for_checked(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    outputs, path = tmp_path / "outputs", str(tmp_path / "own.tar")
    outputs.mkdir()
    run_here(outputs, *with_reference(tmp_path_factory, outputs), name="own")
    command("bundle", "own", "--output-dir", str(outputs), "--to", path, "--yes")
    said = command("verify", path, code=1)
    assert "not checked: rows: addition tiny 0 Counted" in said
    assert "differs" not in said
    assert "problem" not in said
    assert "which is code" in command("verify", path, "--rerun", "0.1", code=2)


def test_many_bundles_make_one_page_in_which_nothing_is_markup(whole: Path, tmp_path: Path) -> None:
    def named(results: dict[str, Any]) -> None:
        for row in (*results["rows"], *results["pooled"]):
            row["algo"] = row["algo"].replace("PITA", "<script>alert(1)</script>\x1b[31m")

    wrong, page = changed(whole, tmp_path / "x.tar", named), tmp_path / "board.html"
    command("verify", str(whole), wrong, "--page", str(page), code=1)
    text = page.read_text()
    assert "<script" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;" in text
    assert "(not verified)" in text
    assert text.index("<td>QSharp</td>") < text.index("&lt;script&gt;")
    assert text.count("<h2>addition · tiny</h2>") == 1


def test_a_bundle_that_cannot_be_read_is_named_and_the_others_are_checked(whole: Path, tmp_path: Path) -> None:
    page, odd, cut = tmp_path / "board.html", tmp_path / "<b>\n\x1b[31m.tar", tmp_path / "cut.tar"
    odd.write_bytes(whole.read_bytes() + b"x")
    cut.write_bytes(whole.read_bytes()[:-10_240])
    part = tmp_path / "part.tar"
    write_bundle(part, {**members(whole), ORIGIN: b"null"})
    unread = [str(path) for path in (odd, cut, part, tmp_path / "absent.tar", tmp_path)]
    said = command("verify", *unread[:2], str(whole), *unread[2:], "--page", str(page), code=2)
    assert "follow from the outcomes" in said
    text = page.read_text()
    assert [text.count(f"<tr><td>{name}") for name in ("cut.tar", "part.tar", "absent.tar")] == [1, 1, 1]
    assert "&lt;b&gt;\\n\\x1b[31m.tar" in text
    assert str(tmp_path) not in text
    rows = [line for line in text.splitlines() if line.startswith("<tr><td class=number>")]
    assert {line.rpartition("<td>")[2].partition(" ")[0] for line in rows} == {whole.name}
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(lines) == len(unread) + 1
    assert "\x1b" not in said


def test_files_of_one_name_are_told_apart_by_their_folders(whole: Path, tmp_path: Path) -> None:
    page, others = tmp_path / "board.html", [tmp_path / folder / "r.tar" for folder in ("ann", "bob", "bob/old")]
    for path in others:
        path.parent.mkdir()
        changed(whole, path, lambda origin: origin.update(command=path.parent.name), ORIGIN)  # noqa: B023
    command("verify", str(whole), *map(str, others), "--page", str(page))
    text, folder = page.read_text(), tmp_path.name
    names = [whole.name, *(f"{path.parent.relative_to(tmp_path)}/r.tar" for path in others)]
    assert [text.count(f"<tr><td>{name}</td>") for name in names] == [1, 1, 1, 1]
    assert folder not in text


def test_a_long_name_is_cut_and_leaves_the_page_as_wide_as_it_is(whole: Path, tmp_path: Path) -> None:
    def named(results: dict[str, Any]) -> None:
        for row in (*results["rows"], *results["pooled"]):
            row["algo"] = row["algo"].replace("PITA", "A" * 100_000)

    wrong, page = changed(whole, tmp_path / "x.tar", named), tmp_path / "board.html"
    said = command("verify", str(whole), wrong, "--page", str(page), code=1)
    assert max(map(len, [*said.splitlines(), *page.read_text().splitlines()])) < 10_000
    if CHROMIUM is None:
        pytest.skip("the rest needs a Chromium, and there is none")
    with browser(tmp_path / "browser") as tab:
        tab.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
        tab.open(page)
        assert tab.ask("document.documentElement.scrollWidth") == 1280
        assert tab.complaints == []


def test_a_place_that_cannot_be_written_to_is_told_and_ends_the_check(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch, write = tmp_path / "scratch", Path.write_bytes
    scratch.mkdir()

    def full(path: Path, data: bytes) -> int:
        if scratch in path.parents:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setattr(Path, "write_bytes", full)
    page = tmp_path / "board.html"
    said = command("verify", str(whole), str(tmp_path / "absent.tar"), "--page", str(page), code=2)
    assert str(scratch) in said
    assert "absent" not in said
    assert not page.exists()
    assert not [*scratch.iterdir()]


def test_without_a_bundle_that_can_be_read_no_page_is_written(tmp_path: Path) -> None:
    page = tmp_path / "board.html"
    said = command("verify", str(tmp_path / "a.tar"), str(tmp_path / "b.tar"), "--page", str(page), code=2)
    assert "a.tar" in said
    assert "b.tar" in said
    assert not page.exists()


def test_a_page_tells_a_bound_from_a_divergence_and_counts_a_bundle_once(whole: Path, tmp_path: Path) -> None:
    bound, page = changed(whole, tmp_path / "x.tar", TAMPERED["a bound"]), tmp_path / "board.html"
    copy = tmp_path / "copy.tar"
    copy.write_bytes(whole.read_bytes())
    command("verify", str(whole), str(copy), bound, "--page", str(page), code=1)
    assert f"<td>{whole.name}, copy.tar</td>" in page.read_text()
    rows = [line for line in page.read_text().splitlines() if line.startswith("<tr><td class=number>")]
    assert [row.count(">≤ ") for row in rows if "<td>PITA</td>" in row] == [0, 1]
    assert [row.count(">≤ ") for row in rows if "<td>QSharp</td>" in row] == [0, 0]


def test_a_method_without_a_value_is_on_the_page_and_has_no_place(whole: Path, tmp_path: Path) -> None:
    def unscored(results: dict[str, Any]) -> None:
        for row in results["pooled"]:
            if row["algo"] == "PITA" and row["metric"] == "pass@1":
                row["value"] = None

    page = tmp_path / "board.html"
    command("verify", changed(whole, tmp_path / "x.tar", unscored), "--page", str(page), code=1)
    rows = [line for line in page.read_text().splitlines() if line.startswith("<tr><td class=number>")]
    assert "<td>PITA</td>" in rows[-1]
    assert "<td class=number>-</td>" in rows[-1].partition("pass@1")[2]
    assert "<td>QSharp</td>" in "".join(rows[:-1])


@pytest.mark.parametrize(("part", "name"), [("altered", OUTPUTS), ("problem", PLAN)])
def test_what_is_wrong_beside_the_numbers_is_counted_in_the_last_line(
    whole: Path, tmp_path: Path, part: str, name: str
) -> None:
    change = other_sums if name == OUTPUTS else reseeded
    said = command("verify", changed(whole, tmp_path / "x.tar", change, name), code=1).splitlines()
    number = sum(line.startswith(f"{part}: ") for line in said)
    assert number
    assert not any(line.startswith(("differs: ", "not checked: ")) for line in said)
    assert "NOT VERIFIED" in said[-1]
    assert re.search(rf"; {number} (file|problem)", said[-1])


def test_whether_a_divergence_is_a_bound_is_checked_of_clones_and_points_too(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    outputs, path = tmp_path / "outputs", tmp_path / "x.tar"
    outputs.mkdir()
    clone = {
        "Pick.class_path": "pipeline.learning.algos.reward_stage.BestOfN",
        "Pick.selection": "majority",
        "Pick.front": "{num_generations: [2,3]}",
    }
    shared = with_reference(tmp_path_factory, outputs)[0]
    run_here(outputs, shared, *(f"algos.{key}={value}" for key, value in clone.items()), "rounds_of_training=1")
    command("bundle", "t", "--output-dir", str(outputs), "--to", str(path), "--yes")
    command("verify", str(path))
    with Bundle(path) as bundle:
        assert bundle.results().bounded == ["Pick"]
        assert len({row.algo for row in bundle.results().rows if row.algo.startswith("Pick")}) > 1
    exact = changed(path, tmp_path / "exact.tar", lambda results: results.update(bounded=[]))
    assert "differs: bounded" in command("verify", exact, code=1)


def test_outcomes_that_no_number_rests_on_are_told(whole: Path, tmp_path: Path) -> None:
    every = members(whole)
    data = every[outcome(whole)]
    known = json.loads(every[OUTPUTS])
    known["0" * 40] = known[outcome(whole).split("/")[1]]
    other = {f"outcomes/{'0' * 40}/samples.jsonl": data, OUTPUTS: json.dumps(known).encode()}
    write_bundle(tmp_path / "x.tar", {**every, **other})
    assert "0" * 40 in command("verify", str(tmp_path / "x.tar"), code=1)


def test_a_part_that_cannot_be_read_is_told_before_anything_is_computed(whole: Path, tmp_path: Path) -> None:
    write_bundle(tmp_path / "x.tar", {**members(whole), ORIGIN: b"null"})
    said = command("verify", str(tmp_path / "x.tar"), code=2)
    assert ORIGIN in said
    assert "recomputed" not in said


@pytest.mark.parametrize(
    "words",
    [
        ("bundle", "nothing", "--to", "x.tar"),
        ("bundle", "t", "--without", "weights"),
        ("verify", "absent.tar"),
        ("verify", "~nobody here/absent.tar"),
        ("verify", "absent.tar", "device=cpu"),
        ("verify", "--rerun", "0.5", "a.tar", "b.tar"),
        ("verify", "x=1"),
    ],
)
def test_a_mistake_is_told_in_words(
    words: tuple[str, ...], outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(outputs.parent)
    said = CliRunner().invoke(app, list(words))
    assert said.exit_code not in (0, 1)
    assert "Traceback" not in said.output


def test_a_bundle_is_not_written_over_a_run(outputs: Path) -> None:
    to = outputs / "t" / "latest" / "results.json"
    assert "for runs" in command("bundle", "t", "--output-dir", str(outputs), "--to", str(to), "--yes", code=2)
