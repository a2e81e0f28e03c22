"""A bundle is read in one form alone; what it lacks and hides stays so, and private things in it are found."""

import gzip
import json
import os
import random
import tarfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
import pytest
import yaml

from pipeline.commands.bundle import _risks
from pipeline.learning.datasets.base import load_dataset, plain_text
from pipeline.learning.rewards.scoring import Scorer
from pipeline.outputs.formats import Sample
from pipeline.plan.build import build_plan
from pipeline.plan.graph import Job, Plan
from pipeline.plan.recorded import RecordedPlan, parse_plan, plan_text
from pipeline.runs.bundle import (
    CONFIG,
    MANIFEST,
    ORIGIN,
    OUTPUTS,
    PLAN,
    RESULTS,
    Bundle,
    BundleError,
    FileSum,
    Made,
    _plan,
    _without_folders,
    find_private,
    without_texts,
    write_bundle,
)
from pipeline.runs.origin import Maker
from pipeline.runs.verified import Repeated, _odd_keys, compare_outputs, differences, scored_otherwise
from tests.doubles.composing import quick_config

KEY = "0123456789" * 4
MEMBERS = {
    RESULTS: b'{"rows": []}\n',
    CONFIG: b"rounds_of_training: 1\n",
    PLAN: b'{"jobs": [], "edges": []}\n',
    ORIGIN: b'{"experiment": "t"}\n',
    OUTPUTS: b"{}\n",
    f"outcomes/{KEY}/samples.jsonl": b"x" * 700,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_bundle(tmp_path / "x.tar", MEMBERS)
    return tmp_path / "x.tar"


def read_all(path: Path) -> dict[str, bytes]:
    with Bundle(path) as bundle:
        return {name: bundle.read(name) for name in bundle.contents.files}


def test_what_was_written_is_read_and_tar_reads_it_too(path: Path, tmp_path: Path) -> None:
    assert read_all(path) == MEMBERS
    with tarfile.open(path) as archive:
        assert archive.getnames() == [MANIFEST, *sorted(MEMBERS)]
        assert {(entry.uid, entry.mtime, entry.uname) for entry in archive} == {(0, 0, "")}
    other = tmp_path / "other.tar"
    write_bundle(other, dict(reversed(MEMBERS.items())))
    assert other.read_bytes() == path.read_bytes()


def test_no_byte_of_it_can_change_unseen(path: Path) -> None:
    whole, draw = path.read_bytes(), random.Random(1)
    for at in draw.sample(range(len(whole)), 400):
        changed = bytearray(whole)
        changed[at] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(BundleError):
            read_all(path)


@pytest.mark.parametrize("cut", [0, 1, 511, 512, 1536, 10_239, -512, -1])
def test_one_that_is_cut_off_is_refused(path: Path, cut: int) -> None:
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(BundleError):
        read_all(path)


def entry(name: str, **fields: object) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(found, field, value)
    return found


HOSTILE = {
    "above": entry("../x"),
    "inside and above": entry(f"outcomes/{KEY}/../../x"),
    "absolute": entry("/tmp/x"),
    "no name of ours": entry("notes.txt"),
    "a link": entry(RESULTS, type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "a hard link": entry(RESULTS, type=tarfile.LNKTYPE, linkname="/etc/passwd"),
    "a device": entry(RESULTS, type=tarfile.CHRTYPE, devmajor=1, devminor=3),
    "a pipe": entry(RESULTS, type=tarfile.FIFOTYPE),
    "a folder": entry("outcomes", type=tarfile.DIRTYPE),
    "a sparse file": entry(RESULTS, type=tarfile.GNUTYPE_SPARSE),
    "a huge file": entry(RESULTS, size=8 << 30),
    "an owner": entry(RESULTS, uid=1000),
    "a time": entry(RESULTS, mtime=1),
    "a long name": entry("outcomes/" + "a" * 200),
    "further headers": entry(RESULTS, pax_headers={"path": "../x"}),
    "an odd key": entry("outcomes/" + "g" * 40 + "/samples.jsonl"),
    "an odd folder": entry(f"outcomes/{KEY}/eta=../samples.jsonl"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_archive_of_another_kind_is_refused(name: str, tmp_path: Path) -> None:
    path, hostile = tmp_path / "x.tar", HOSTILE[name]
    with path.open("wb") as file, tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.fileobj.write(hostile.tobuf(tarfile.PAX_FORMAT))  # type: ignore[union-attr]
        archive.fileobj.write(bytes(min(hostile.size, 1024)))  # type: ignore[union-attr]
    path.write_bytes(path.read_bytes() + bytes(-path.stat().st_size % tarfile.RECORDSIZE))
    with pytest.raises(BundleError):
        Bundle(path)
    assert [each.name for each in tmp_path.iterdir()] == ["x.tar"]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: gzip.compress(data),
        lambda data: data + bytes(tarfile.RECORDSIZE),
        lambda data: data[: -2 * 512] + b"hidden".ljust(2 * 512, b"\0"),
        lambda data: data[:1024] + data,
        lambda data: b"",
        lambda data: bytes(tarfile.RECORDSIZE),
    ],
    ids=["compressed", "more zeros", "behind its end", "twice", "empty", "no member"],
)
def test_other_bytes_around_it_are_refused(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(BundleError):
        Bundle(path)


def test_parts_that_lack_are_named(path: Path) -> None:
    write_bundle(path, {name: data for name, data in MEMBERS.items() if name != RESULTS})
    with pytest.raises(BundleError):
        Bundle(path)
    with pytest.raises(BundleError, match="cannot be read"):
        Bundle(path.with_name("absent.tar"))


@pytest.mark.parametrize(
    "config",
    [
        b"&a [*a, *a]",
        b"a: &a [1,1,1,1,1,1,1,1]\n"
        + b"".join(b"%c: &%c [%s]\n" % (n + 1, n + 1, b", ".join([b"*%c" % n] * 9)) for n in range(97, 110)),
        b"!!python/object/apply:os.system ['true']",
        b"[" * 10_000,
        b"- a list",
        b"\xff",
    ],
    ids=["itself", "aliases", "object", "deep", "list", "no text"],
)
def test_settings_of_a_stranger_are_read_with_bounds(path: Path, config: bytes) -> None:
    write_bundle(path, {**MEMBERS, CONFIG: config})
    with Bundle(path) as bundle, pytest.raises(BundleError, match=r"config\.yaml"):
        bundle.settings()


@pytest.mark.parametrize("key", ["../../../../x", "", "A" * 40])
def test_a_plan_whose_keys_lead_elsewhere_is_refused(path: Path, key: str) -> None:
    job = f'{{"id": "a", "key": "{key}", "entry": "", "payload": {{}}}}'
    write_bundle(path, {**MEMBERS, PLAN: f'{{"jobs": [{job}], "edges": []}}'.encode()})
    with Bundle(path) as bundle, pytest.raises(BundleError, match=r"plan\.json"):
        bundle.plan()


@pytest.mark.parametrize(
    "plan",
    [b"[" * 10_000, b"null", b"[]", b"{}", b'{"jobs": 3}', b'{"jobs": [3]}', b'{"jobs": [{}]}'],
    ids=["nested", "null", "list", "no jobs", "a number of jobs", "a job that is none", "a job without an id"],
)
def test_what_is_wrong_with_a_plan_is_said_once_and_in_words(path: Path, plan: bytes) -> None:
    write_bundle(path, {**MEMBERS, PLAN: plan})
    with Bundle(path) as bundle, pytest.raises(BundleError) as told:
        bundle.plan()
    said = str(told.value)
    assert said.count("this is no ") <= 1
    assert not any(word in said for word in ("NoneType", "mapping", "subscriptable", "'jobs'"))


def sample(row: int, number: int = 0, **fields: object) -> Sample:
    plain = Sample(row, number, f"p{row}", "secret text", 3, 1.0, True, 0.5, False)
    return replace(plain, **fields)


def test_without_texts_equal_prompts_and_answers_stay_equal() -> None:
    before = {
        "b": [sample(1, answer="4"), sample(1, 1, answer="5"), sample(1, 2, answer="4"), sample(1, 3)],
        "a": [sample(9, prompt="p1", answer="4", solution="4"), sample(2)],
    }
    after = without_texts(before)
    assert [[one.prompt for one in after[name]] for name in "ab"] == [["0", "1"], ["0"] * 4]
    assert [one.answer for one in after["b"]] == ["0", "1", "0", None]
    assert not any(one.completion or one.solution for own in after.values() for one in own)
    assert [one.reward for one in after["b"]] == [1.0] * 4


def test_paths_lose_their_folders_and_other_texts_stay() -> None:
    settings = {
        "path": "/home/ann/models/tiny",
        "value_path": "~/x.gguf",
        "also": {"sft": "/models"},
        "stop": ["</s>", "/think"],
        "system_prompt": "/no_think",
        "prompt_template": "{prompt} and/or",
        "class_path": "mine.Own",
        "options": {"file": "/home/ann/rows.jsonl"},
        "hub": "owner/name",
    }
    kept = {"path": "tiny", "value_path": "x.gguf", "also": {"sft": "models"}, "options": {"file": "rows.jsonl"}}
    assert _without_folders(settings) == {**settings, **kept}


@pytest.mark.parametrize(
    ("member", "text", "is_secret"),
    [
        ("config.yaml", "options: {api_key: abcdef123}", True),
        ("config.yaml", "key_env: OPENAI_API_KEY\nmax_new_tokens: 64\napi_key: ''", False),
        ("outcomes/x", "how to write password = hunter22", False),
        ("outcomes/x", "it is hf_" + "a" * 30, True),
        ("origin.json", "https://ann:word@example.org/x", True),
        ("outcomes/x", "as the environment has: s3cretvalue", True),
        ("outcomes/x", "nothing here, see https://example.org/a:b", False),
    ],
)
def test_secrets_are_found(member: str, text: str, is_secret: bool) -> None:
    found, _ = find_private({member: text.encode()}, {"MY_TOKEN": "s3cretvalue", "HOME": "/home/ann"}, [])
    assert (member in found) is is_secret
    assert text[-10:] not in str(found)


@pytest.mark.parametrize(
    "value", ["Pässwort", 'a "quoted" one', r"C:\some\key", "two\nlines", "it's " + "long " * 40]
)
def test_values_of_the_environment_are_found_however_they_are_written(value: str) -> None:
    plain = {"system_prompt": f"first {value} then"}
    members = {
        "config.yaml": yaml.safe_dump(plain).encode(),
        "plan.json": json.dumps(plain).encode(),
        "outcomes/x": json.dumps(plain, ensure_ascii=False).encode(),
    }
    found, named = find_private(members, {"MY_PASSWORD": value}, [])
    assert set(found) == set(members)
    assert not named
    assert set(find_private(members, {}, [value.strip()])[1]) == set(members)


def test_names_of_user_and_machine_are_found_as_words() -> None:
    _, named = find_private({"a": b"by ann", "b": b"planning", "c": b"box-1"}, {}, ["ann", "box-1"])
    assert named == {"a": ["ann"], "c": ["box-1"]}


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        ({"algos": {"Mine": {"class_path": "mine.Own"}}}, ()),
        ({"algos": {"Mine": {"class_path": "pipeline.learning.algos.dpo.partial"}}}, ()),
        ({"datasets": {"d": {"class_path": "mine.Own"}}}, ()),
        ({"datasets": {"d": {"reward": "os.system"}}}, ()),
        ({"datasets": {"d": {"rewards": {"math": 1.0, "mine.f": 1.0}}}}, ()),
        ({"datasets": {"d": {"reward": "x", "grading": {"options": {"x": {"use": "mine.f"}}}}}}, ()),
        ({"models": {"m": {"trust_remote_code": True}}}, ()),
        ({"models": {"m": {"path": "/etc"}}}, ("models.other.path",)),
        ({"datasets": {"d": {"path": "../x.jsonl"}}}, ()),
        ({"datasets": {"d": {"grading": {"options": {"j": {"endpoint": "http://10.0.0.1/v1"}}}}}}, ()),
        ({"evaluation": {"also": {"sft": "~/x"}}}, ()),
        ({"algos": {"Distilled": {"teacher": "/models/large"}}}, ("algos.Other.teacher",)),
        ({"datasets": {"d": {"path": "rows", "subset": "/etc"}}}, ()),
        ({"datasets": {"d": {"path": "rows", "revision": "../../x"}}}, ()),
    ],
)
def test_settings_by_which_a_stranger_chooses_code_or_places_are_refused(settings: dict, given: tuple) -> None:
    assert list(_risks(settings, given))


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        ({"algos": {"Clone": {"class_path": "pipeline.learning.algos.dpo.DPO"}}}, ()),
        ({"algos": {"PITA": {"class_path": None}}, "datasets": {"d": {"reward": "exact_match"}}}, ()),
        ({"datasets": {"d": {"reward": "x", "grading": {"options": {"x": {"use": "exact_match"}}}}}}, ()),
        ({"models": {"m": {"path": "owner/name", "trust_remote_code": False}}}, ()),
        ({"datasets": {"d": {"path": "/etc/x"}}}, ("datasets.d.path",)),
        ({"algos": {"Distilled": {"teacher": "QSharp"}, "Other": {"teacher": "owner/name"}}}, ()),
        ({"algos": {"Distilled": {"teacher": "/models/large"}}}, ("algos.Distilled.teacher",)),
        ({"datasets": {"d": {"path": "owner/name", "subset": "main", "revision": "refs/pr/1"}}}, ()),
    ],
)
def test_other_settings_are_not(settings: dict, given: tuple) -> None:
    assert not list(_risks(settings, given))


def test_outcomes_of_other_arithmetic_differ_within_the_tolerance_or_not() -> None:
    was = [sample(row, correct=row % 2 == 0, reward=float(row % 2 == 0)) for row in range(400)]
    same = [replace(one, correct=not one.correct) if one.row in (0, 1) else one for one in was]
    worse = [replace(one, correct=False, reward=0.0) for one in was]
    apart, problems = differences({"same": (was, same), "worse": (was, worse)})
    assert not problems
    assert {(one.policy, one.metric): one.exceeds(0.02) for one in apart} == {
        ("same", "pass@1"): False,
        ("same", "reward"): False,
        ("worse", "pass@1"): True,
        ("worse", "reward"): True,
    }
    assert differences({"fewer": (was, was[1:])})[1]


def test_recorded_completions_are_scored_again() -> None:
    settings = quick_config(["experiment.name=t"]).datasets["addition"]
    dataset = load_dataset(settings)
    rows = [dataset.row(int(row)) for row in dataset.ids("test")[:3]]
    texts = [str(row.columns["solution"]) for row in rows]
    with Scorer(settings) as scorer:
        votes = scorer.score(rows, texts, [[0] * 4] * 3).answers
    known = [
        Sample(row.id, 0, plain_text(row.prompt), text, 4, 1.0, True, 0.0, False, answer=vote)
        for row, text, vote in zip(rows, texts, votes, strict=True)
    ]
    assert scored_otherwise(known, dataset, settings, 256) == []
    wrong = [replace(known[0], reward=0.0), replace(known[1], completion="0"), replace(known[2], prompt="1+1=")]
    assert scored_otherwise(wrong, dataset, settings, 256) == wrong


def test_rewards_are_compared_in_parts_of_their_range() -> None:
    was = [sample(row, correct=None, reward=1000.0 * (row % 2)) for row in range(400)]
    now = [replace(one, reward=(one.reward or 0.0) + 1.0) for one in was]
    [apart] = differences({"a": (was, now)})[0]
    assert apart.difference == pytest.approx(0.001, rel=0.01)
    assert not apart.exceeds(0.02)


HERE = Maker("portable", "1", "2", "3")
ELSEWHERE = replace(HERE, arithmetic="another processor")
FIRST, SECOND = "1" * 40, "2" * 40


def repeated(
    path: Path, recorded: Maker | None, bytes_of_first: str, bytes_of_second: str, right: int = 50
) -> Repeated:
    """Two jobs, of which the second reads the first and evaluates, made here by `HERE`."""
    jobs = [Job(id=key[0], key=key, entry="", payload={}, stage="evaluate") for key in (FIRST, SECOND)]
    samples = [sample(row, correct=row < 50, reward=float(row < 50)) for row in range(100)]
    text = "".join(json.dumps(asdict(one)) + "\n" for one in samples)

    def made(key: str, digit: str, maker: Maker) -> Made:
        return Made({"samples.jsonl": FileSum(1, digit * 64)}, maker)

    outputs = {key: made(key, "0", recorded) for key in (FIRST, SECOND) if recorded}
    write_bundle(
        path,
        {
            **MEMBERS,
            OUTPUTS: json.dumps(msgspec.to_builtins(outputs)).encode(),
            f"outcomes/{SECOND}/samples.jsonl": text.encode(),
        },
    )
    digits = {FIRST: bytes_of_first, SECOND: bytes_of_second}
    again = [replace(one, correct=one.row < right, reward=float(one.row < right)) for one in samples]
    with Bundle(path) as bundle:
        plan = Plan(jobs, [("1", "2")])
        return compare_outputs(bundle, plan, lambda job: made(job.key, digits[job.key], HERE), lambda _: again)


def test_jobs_of_the_recorded_arithmetic_must_have_the_recorded_bytes(path: Path) -> None:
    assert repeated(path, HERE, "0", "0").is_sound(0.02)
    assert repeated(path, HERE, "0", "0").alike == 2
    assert repeated(path, HERE, "0", "1").unlike == ["2"]
    assert not repeated(path, HERE, "0", "1").is_sound(0.02)


def test_of_other_arithmetic_outcomes_count(path: Path) -> None:
    assert repeated(path, ELSEWHERE, "0", "0").alike == 2
    within = repeated(path, ELSEWHERE, "1", "1")
    assert within.is_sound(0.02)
    assert (within.alike, within.unlike, len(within.apart), len(within.makers)) == (0, [], 2, 1)
    assert not repeated(path, ELSEWHERE, "1", "1", right=0).is_sound(0.02)
    assert repeated(path, ELSEWHERE, "1", "1", right=0).is_sound(1.0)


def test_outcomes_count_where_nothing_was_recorded_of_the_bytes(path: Path) -> None:
    assert repeated(path, None, "0", "0").is_sound(0.02)
    assert not repeated(path, None, "0", "0", right=0).is_sound(0.02)


def test_an_open_pipe_in_the_place_of_a_bundle_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.tar")
    with pytest.raises(BundleError):
        Bundle(tmp_path / "x.tar")


def test_a_member_is_read_whole_or_not_at_all(path: Path) -> None:
    with Bundle(path) as bundle:
        path.write_bytes(path.read_bytes().replace(b"x" * 700, b"y" * 700))
        with pytest.raises(BundleError, match=r"samples\.jsonl"):
            bundle.read(f"outcomes/{KEY}/samples.jsonl")


def bundled(rows: dict[str, int]) -> RecordedPlan:
    """The plan in a bundle of a run in shards of 20, with a dataset of some rows."""
    settings = [
        "experiment.name=t",
        "algos=[DPO]",
        "data_collection.prompts_per_round=60",
        "execution.shard_size=20",
    ]
    plan = build_plan(quick_config(settings), rows=lambda _name, _key: rows)
    return parse_plan(json.dumps(_plan(parse_plan(plan_text(plan)), told=True)))


@pytest.mark.parametrize("rows", [{}, {"train": 25, "test": 15}])
def test_keys_follow_from_a_plan_in_which_shards_may_have_no_rows(rows: dict[str, int]) -> None:
    plan = bundled(rows)
    assert list(_odd_keys(plan)) == []
    assert {job.stage for job in plan.jobs.values() if job.keyed} == ({"train", "metrics"} if rows else set())
    read = next(job for job in plan.jobs.values() if job.stage == "train" and job.algo == "DPO")
    fewer = replace(
        read, inputs={name: keys[1:] for name, keys in read.inputs.items()}, keyed=read.inputs | read.keyed
    )
    assert any(_odd_keys(replace(plan, jobs={**plan.jobs, read.id: fewer})))
