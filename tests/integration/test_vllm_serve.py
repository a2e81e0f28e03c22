"""A guided policy behind the OpenAI protocol of a real vLLM, where one is installed; on loopback, on a CPU."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, MistralConfig

import pipeline
from pipeline.commands import export as exporting
from pipeline.errors import ConfigError, JobError
from pipeline.learning.generation.vllm_plugin import GUIDED
from tests.doubles.small_runs import ROOT, run_here, wait_for

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed"),
    pytest.mark.timeout(900),
]
PROMPTS = ["123+456=", "619+049=", "999+001=", "1+1=", "12+99=", "555+555=", "7+8=", "320+111="]
AS_ONE = ("--hf-overrides", json.dumps({"architectures": [GUIDED]}))
ETAS = [0.001, 0.05, 0.1, 0.3, 1.0, 10.0, "inf", None]
WHERE = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A value model with a Q head, and one with a V head."""
    folder = tmp_path_factory.mktemp("served")
    run_here(folder / "outputs", "models.tiny.n_head=2", "algos=[QSharp,PITA]", "algos.PITA.head=v")
    for name in ("QSharp", "PITA"):
        exporting.export("t", folder / name, name, output_dir=folder / "outputs")
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with this package as it is installed, by which vLLM finds its plugin."""
    folder = tmp_path_factory.mktemp("installed")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    about = folder / f"{project['name'].replace('-', '_')}-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    points = project["entry-points"]["vllm.general_plugins"]
    lines = [f"{name} = {place}" for name, place in points.items()]
    (about / "entry_points.txt").write_text("\n".join(["[vllm.general_plugins]", *lines]) + "\n")
    return folder


@contextmanager
def served(folder: Path, installed: Path, *more: str) -> Iterator[str]:
    """Run the command of the card for CPUs, on a free port, and yield the address; no process is left."""
    (command,) = re.findall(r"^VLLM_CPU_.*", (folder / "README.md").read_text(), re.MULTILINE)
    _, _, *words = shlex.split(command)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, *words, *more, "--port", str(port), "--max-num-seqs", "16"],
            stdout=log,
            stderr=log,
            cwd=folder,
            env=os.environ | WHERE | {"PYTHONPATH": f"{installed}{os.pathsep}{ROOT}"},
            start_new_session=True,
        )
        try:
            wait_for(lambda: is_up(address) or server.poll() is not None)
            assert server.poll() is None, (folder / "server.log").read_text()[-5000:]
            yield address
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(60)
            finally:
                with_all_children(server.pid)


def is_up(address: str) -> bool:
    try:
        return bool(urllib.request.urlopen(f"{address}/health", timeout=5).status == 200)
    except OSError:
        return False


def with_all_children(session: int) -> None:
    try:
        os.killpg(session, signal.SIGKILL)
    except ProcessLookupError:
        return


def reply(address: str, **asked: Any) -> tuple[int, Any]:
    """Status and body."""
    body = json.dumps({"model": "guided", "prompt": PROMPTS[0], "max_tokens": 4} | asked).encode()
    request = urllib.request.Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def events(address: str, **asked: Any) -> list[Any]:
    """What a stream says, without its end."""
    body = json.dumps({"model": "guided", "prompt": PROMPTS[0], "max_tokens": 4, "stream": True} | asked).encode()
    request = urllib.request.Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        said = [line.removeprefix(b"data: ") for line in answer.read().splitlines() if line]
    assert said.pop() == b"[DONE]"
    return [json.loads(one) for one in said]


def texts(address: str, **asked: Any) -> list[str]:
    status, body = reply(address, **asked)
    assert status == 200, body
    return [choice["text"] for choice in body["choices"]]


def at(eta: float | str | None) -> dict[str, Any]:
    return {} if eta is None else {"vllm_xargs": {"eta": eta}}


@pytest.mark.parametrize(("name", "more"), [("QSharp", AS_ONE), ("PITA", ())])
def test_requests_of_many_strengths_at_once_get_the_texts_of_generate(
    exported: Path, installed: Path, name: str, more: tuple[str, ...]
) -> None:
    guided = pipeline.guided(exported / name, device="cpu")
    pairs = list(zip(PROMPTS, ETAS, strict=True))

    def own(prompt: str, eta: float | str | None, **options: Any) -> list[str]:
        return guided.generate(prompt, **({} if eta is None else {"eta": float(eta)}), **options)

    with served(exported / name, installed, *more) as address, ThreadPoolExecutor(16) as pool:
        ask = lambda **asked: pool.submit(texts, address, **asked)  # noqa: E731
        greedy = [ask(prompt=prompt, temperature=0, **at(eta)) for prompt, eta in pairs]
        drawn = [ask(prompt=prompt, seed=7, temperature=0.8, top_p=0.9, **at(eta)) for prompt, eta in pairs]
        again = [ask(prompt=prompt, seed=7, temperature=0.8, top_p=0.9, **at(eta)) for prompt, eta in pairs]
        assert [each.result() for each in greedy] == [own(*pair, greedy=True) for pair in pairs]
        found = [each.result() for each in drawn]
        assert found == [each.result() for each in again]
        wanted = [own(*pair, seed=7, temperature=0.8, top_p=0.9) for pair in pairs]
        finite = [row for row, eta in enumerate(ETAS) if eta != "inf"]
        assert [found[row] for row in finite] == [wanted[row] for row in finite]
        several = texts(address, seed=5, n=3, **at(0.1))
        assert several == [own(PROMPTS[0], 0.1, seed=seed)[0] for seed in (5, 6, 7)]
        assert len({*texts(address, prompt=PROMPTS, n=4)}) > 1
        assert texts(address, prompt=PROMPTS[:2], seed=5, **at(0.1)) == [
            own(p, 0.1, seed=5)[0] for p in PROMPTS[:2]
        ]
        assert texts(address, seed=7, eta=0.001) == texts(address, seed=7)  # vLLM reads it in vllm_xargs alone
        refused: list[Mapping[str, Any]] = [
            *(at(eta) for eta in (0, -1, "much", "nan", "1_0", [1])),
            {"vllm_xargs": {"ate": 1}},
            {"seed": -2},
            *({"top_k": 5}, {"min_p": 0.1}, {"presence_penalty": 1}, {"repetition_penalty": 1.1}),
            *(
                {"logprobs": 0},
                {"prompt_logprobs": 1},
                {"logit_bias": {"3": 5}},
                {"use_beam_search": True, "n": 2},
            ),
            {"min_tokens": 2, "stop_token_ids": [1]},
            *({"structured_outputs": {"choice": ["1"]}}, {"allowed_token_ids": [1]}, {"bad_words": ["1"]}),
        ]
        for asked in refused:
            status, body = reply(address, **asked)
            assert (status, bool(body["error"]["message"])) == (400, True), asked
        (told,) = events(address, **at(-1))  # vLLM asks a processor when the stream has begun
        assert (told["error"]["code"], "eta=-1" in told["error"]["message"]) == (400, True)
        streamed = events(address, seed=7, **at(0.1))
        assert "".join(each["choices"][0]["text"] for each in streamed) == texts(address, seed=7, **at(0.1))[0]
        assert texts(address, seed=7, **at(True)) == texts(address, seed=7, **at(1.0))
        stopped = texts(address, temperature=0, stop=[greedy[0].result()[0][1:]], **at(ETAS[0]))
        assert all(len(text) < 4 for text in stopped)
        assert is_up(address)
    log = (exported / name / "server.log").read_text()
    assert bool(re.search(rf"guided by {name} \(.*{GUIDED}", log)) == bool(more)
    assert f"guided by {name} (" in log


def served_model(folder: Path, length: int = 64, head: int = 32, dtype: str = "float32") -> Any:
    return SimpleNamespace(
        model=str(folder),
        max_model_len=length,
        dtype=f"torch.{dtype}",
        get_head_size=lambda: head,
        architectures=["GPT2LMHeadModel"],
    )


def served_as_one(folder: Path, shape: Any, quantization: str | None = None) -> Any:
    return SimpleNamespace(
        **vars(served_model(folder))
        | {"architectures": [GUIDED], "hf_config": shape, "quantization": quantization},
        get_vocab_size=lambda: shape.vocab_size,
    )


def settings(model: Path, **others: Any) -> Any:
    """What a processor reads of the settings of an engine."""
    return SimpleNamespace(
        **{
            "speculative_config": None,
            "parallel_config": SimpleNamespace(world_size=1),
            "model_config": served_model(model),
            "scheduler_config": SimpleNamespace(max_num_seqs=4),
            "additional_config": {},
        }
        | others
    )


def test_what_a_value_model_cannot_follow_is_refused_at_the_start(exported: Path, tmp_path: Path) -> None:
    from pipeline.vllm import Guided

    reference = exported / "QSharp" / "reference"
    Guided(settings(reference), "cpu")
    with pytest.raises(ConfigError, match="speculative"):
        Guided(settings(reference, speculative_config=object()), "cpu")
    with pytest.raises(ConfigError, match="2 devices"):
        Guided(settings(reference, parallel_config=SimpleNamespace(world_size=2)), "cpu")
    with pytest.raises(ConfigError, match="--max-model-len 128"):
        Guided(settings(reference, model_config=served_model(reference, length=4096)), "cpu")
    with pytest.raises(ConfigError, match=r"models\.tiny\.n_head=2"):
        Guided(settings(reference, model_config=served_model(reference, head=16)), "cpu")
    elsewhere = shutil.copytree(reference, tmp_path / "other" / "reference")
    with pytest.raises(ConfigError, match="no exported value model"):
        Guided(settings(elsewhere), "cpu")
    Guided(settings(elsewhere, additional_config={"guide": str(exported / "QSharp")}), "cpu")


def test_what_is_no_one_model_is_refused_at_the_start(exported: Path) -> None:
    from pipeline.learning.generation.vllm_model import GuidedForCausalLM
    from pipeline.vllm import Guided

    reference = exported / "QSharp" / "reference"
    shape = AutoConfig.from_pretrained(reference)
    Guided(settings(reference, model_config=served_as_one(reference, shape)), "cpu")
    with pytest.raises(ConfigError, match="quantization"):
        Guided(settings(reference, model_config=served_as_one(reference, shape, "awq")), "cpu")
    sliding = MistralConfig(sliding_window=8, hidden_size=64, num_attention_heads=2)
    with pytest.raises(ConfigError, match="mistral"):
        Guided(settings(reference, model_config=served_as_one(reference, sliding)), "cpu")
    beside = exported / "PITA" / "reference"
    with pytest.raises(ConfigError, match="no Q head"):
        GuidedForCausalLM(vllm_config=settings(beside, model_config=served_as_one(beside, shape)))


@pytest.mark.parametrize("name", ["model.safetensors", "value_head.safetensors"])
def test_a_value_model_that_lacks_weights_is_refused_at_the_start(
    exported: Path, tmp_path: Path, name: str
) -> None:
    from pipeline.vllm import Guided

    reference = shutil.copytree(exported / "QSharp", tmp_path / "model") / "reference"
    held = load_file(reference.parent / name)
    save_file(dict(sorted(held.items())[1:]), reference.parent / name, {"format": "pt"})
    shape = AutoConfig.from_pretrained(reference)
    with pytest.raises(JobError, match=str(reference.parent)):
        Guided(settings(reference, model_config=served_as_one(reference, shape)), "cpu")


def test_another_dtype_than_that_of_the_run_is_told(exported: Path, caplog: pytest.LogCaptureFixture) -> None:
    from pipeline.vllm import Guided

    reference = exported / "QSharp" / "reference"
    log = logging.getLogger("vllm.pipeline")
    caplog.set_level("INFO", logger=log.name)
    log.addHandler(caplog.handler)
    try:
        for dtype, levels in {"float32": {"INFO"}, "bfloat16": {"WARNING", "INFO"}}.items():
            caplog.clear()
            Guided(settings(reference, model_config=served_model(reference, dtype=dtype)), "cpu")
            assert {record.levelname for record in caplog.records} == levels
    finally:
        log.removeHandler(caplog.handler)
