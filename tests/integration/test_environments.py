"""Nothing of a user's environment decides bytes, keys or whether workers start."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.doubles.families import tiny_model
from tests.doubles.small_runs import ROOT
from tests.doubles.tokenizers import tokenizer

pytestmark = pytest.mark.exhaustive

WITHOUT_RIGHTS = "setpriv --bounding-set=-all --inh-caps=-all" if os.geteuid() == 0 else ""
"""What takes from root its right to write where nobody may."""


@dataclass(frozen=True)
class Around:
    """What a command finds.

    Attributes:
        said: Variables as a shell writes them; a name alone for one that is not there.
        before: What a shell does before it.
        by: What starts it.
        alone: Whether there is no other variable.
        outputs: The folder that it writes, in that of the test.
        same_words: Whether it prints what it prints elsewhere.
    """

    said: str = ""
    before: str = ""
    by: str = ""
    alone: bool = False
    outputs: str = "outputs"
    same_words: bool = True


AROUND = {
    "the hub, offline": Around(
        "HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME=/nonexistent "
        'HF_HUB_CACHE=/nonexistent HF_TOKEN="an odd token" HF_ENDPOINT=http://127.0.0.1:9 '
        "TRANSFORMERS_VERBOSITY=debug TOKENIZERS_PARALLELISM=true CUDA_VISIBLE_DEVICES= "
        "CUDA_DEVICE_ORDER=FASTEST_FIRST"
    ),
    "folders where nobody may write": Around(
        "HF_HOME=HERE/read-only HOME=HERE/read-only XDG_CACHE_HOME=HERE/read-only MPLCONFIGDIR=/proc/nowhere "
        "TMPDIR=/nonexistent HF_TOKEN= CUDA_VISIBLE_DEVICES=-1",
        by=WITHOUT_RIGHTS,
    ),
    "W&B": Around(
        'WANDB_MODE=offline WANDB_PROJECT="an odd/project" WANDB_RUN_ID=a WANDB_SWEEP_ID=b '
        "WANDB_DIR=/proc/nowhere WANDB_API_KEY=odd WANDB_RESUME=must WANDB_SWEEP_PARAM_PATH=/nonexistent",
        same_words=False,  # it is told that the sweep hears nothing
    ),
    "torchrun, Ray and Slurm left over": Around(
        "RANK=3 WORLD_SIZE=8 LOCAL_RANK=3 LOCAL_WORLD_SIZE=8 NODE_RANK=1 MASTER_ADDR=10.255.255.1 "
        "MASTER_PORT=many TORCHELASTIC_RUN_ID=a PMI_RANK=1 OMPI_COMM_WORLD_RANK=2 RAY_ADDRESS=10.255.255.1:6379 "
        "ACCELERATE_MIXED_PRECISION=bf16 ACCELERATE_USE_FSDP=true ACCELERATE_TORCH_DEVICE=odd "
        "SLURM_JOB_ID=7 SLURM_PROCID=3 SLURM_NTASKS=8 SLURM_CPUS_PER_TASK=7 SLURM_JOB_GPUS=0,1 SLURM_NODEID=1 "
        'SLURM_STEP_ID=0 SLURM_LOCALID=3 SLURM_JOB_NODELIST="n[1-2]" SLURMD_NODENAME=n2'
    ),
    "threads and instructions": Around(
        "OMP_NUM_THREADS=4,2 OMP_PROC_BIND=spread OMP_PLACES=cores OMP_THREAD_LIMIT=1 OMP_DYNAMIC=true "
        "MKL_NUM_THREADS=-1 MKL_DYNAMIC=true KMP_AFFINITY=verbose,scatter GOMP_CPU_AFFINITY=0 MKL_CBWR=AVX512 "
        "ONEDNN_MAX_CPU_ISA=SSE41 ATEN_CPU_CAPABILITY=default OPENBLAS_CORETYPE=Nehalem "
        "NPY_DISABLE_CPU_FEATURES=X86_V4 NVIDIA_TF32_OVERRIDE=1 TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1"
    ),
    "other threads and instructions": Around(
        "OMP_NUM_THREADS=abc NUMEXPR_NUM_THREADS=x MKL_ENABLE_INSTRUCTIONS=SSE4_2 MKL_DEBUG_CPU_TYPE=5 "
        "NPY_ENABLE_CPU_FEATURES=X86_V3 ONEDNN_DEFAULT_FPMATH_MODE=BF16 ONEDNN_VERBOSE=1 "
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY=0 TORCH_LINEAR_FLATTEN_3D=1 TRANSFORMERS_SDPA_FORCE_GQA=1 "
        "TORCH_LOGS=+dynamo PYTORCH_CUDA_ALLOC_CONF=odd:words TORCH_FORCE_WEIGHTS_ONLY_LOAD=1 PYTORCH_JIT=0"
    ),
    "Python": Around(
        "PYTHONHASHSEED=12345 PYTHONOPTIMIZE=2 PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1 "
        "PYTHONNOUSERSITE=1 PYTHONINTMAXSTRDIGITS=640 PYTHONPATH=ROOT:PACKAGES",
        outputs=f"{'an odd näme ' * 6}/{'数' * 50} {'x' * 40}",
    ),
    "Python that takes warnings for errors": Around(
        "PYTHONHASHSEED=random PYTHONWARNINGS=error PYTHONDEVMODE=1",
        before="umask 077; exec <&-; ulimit -Sn 256; cd ../link;",
    ),
    "odd languages, encodings and proxies": Around(
        "PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 PYTHONIOENCODING=ascii LC_ALL=C LANG=tr_TR.UTF-8 TERM=dumb "
        "TZ=No/Sense FORCE_COLOR=1 COLUMNS=abc http_proxy=http://127.0.0.1:9 https_proxy=http://127.0.0.1:9 "
        "SSL_CERT_FILE=/nonexistent HYDRA_FULL_ERROR=1",
        same_words=False,
    ),
    "nothing, no output": Around(before="exec >&- 2>&-;", alone=True, same_words=False),
}


REWARD = """
def letters(completions, **_):
    return [sum(map(ord, str(completion))) % 5 / 4 for completion in completions]
"""


@dataclass(frozen=True)
class Finished:
    """What a run has left: its results, its outputs by their keys, and what it has printed."""

    results: dict[str, bytes]
    outputs: dict[str, object]
    printed: str


@pytest.fixture(scope="module")
def request_of(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of policies with adapters and of values, over a model and conversations in files."""
    folder = tmp_path_factory.mktemp("given")
    model, texts = tiny_model("llama"), tokenizer("dated")
    model.resize_token_embeddings(len(texts))
    model.save_pretrained(folder / "model")
    texts.save_pretrained(folder / "model")
    rows = [{"prompt": [{"role": "user", "content": f"Größe {one}?"}], "solution": str(one)} for one in range(30)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return [
        *("experiment.name=t", "algos=[DPO,PITA]", "rounds_of_training=1", "execution.workers=1"),
        *("model=hf", f"models.hf.path={folder / 'model'}", "dataset=jsonl"),
        *(
            "datasets.jsonl.reward=of_the_folder.letters",
            f"datasets.jsonl.path={folder / 'rows.jsonl'}",
            "algos.DPO.lora.rank=2",
        ),
        *("datasets.jsonl.test_size=5", "datasets.jsonl.validation_size=5", "generation.max_new_tokens=4"),
        *("data_collection.prompts_per_round=10", "evaluation.num_prompts=5", "evaluation.bootstrap_samples=20"),
    ]


@pytest.fixture(scope="module")
def plain(request_of: list[str], tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return carried_out(Around(), request_of, tmp_path_factory.mktemp("plain"))


def carried_out(around: Around, request: list[str], folder: Path) -> Finished:
    (folder / "here").mkdir()
    (folder / "an odd täg").mkdir()
    (folder / "read-only").mkdir(mode=0o555)
    (folder / "link").symlink_to("here")
    (folder / "here" / "of_the_folder.py").write_text(REWARD)
    outputs = folder / around.outputs
    command = [sys.executable, str(ROOT / "run_parallel.py"), f'output_dir="{outputs}"', *request]
    environment = {} if around.alone else dict(os.environ)
    places = {"HERE": str(folder), "ROOT": str(ROOT), "PACKAGES": str(Path(psutil.__file__).parents[1])}
    for word in shlex.split(around.said):
        name, given, value = word.partition("=")
        environment.pop(name, None)
        if given:
            environment[name] = re.sub("HERE|ROOT|PACKAGES", lambda place: places[place[0]], value)
    done = subprocess.run(
        ["/bin/sh", "-c", f"{around.before} exec {around.by} {shlex.join(command)}"],
        env=environment,
        cwd=folder / "here",
        capture_output=True,
        timeout=600,
        check=False,
    )
    printed = (done.stdout + done.stderr).decode("utf-8", "backslashreplace").replace(str(outputs), "outputs")
    assert done.returncode == 0, printed
    run = outputs / "t" / "latest"
    names = ("results.json", "results.csv", "pooled.csv", "samples.jsonl", "plan.json")
    return Finished(
        {name: (run / name).read_bytes() for name in names if (run / name).exists()},
        {path.parent.name: json.loads(path.read_bytes()) for path in outputs.glob(".store/??/*/manifest.json")},
        printed,
    )


def lines(printed: str) -> set[str]:
    """Without colours, numbers, columns of tables, and what tells of progress and times."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed)
    return {
        re.sub(r"\d[\d.:_-]*", "#", line.partition("  ")[0]).strip()
        for line in plain.splitlines()
        if not line.startswith(("[", "took "))
    }


@pytest.mark.parametrize("name", AROUND)
def test_a_run_is_the_same_whatever_is_around_it(
    name: str, request_of: list[str], plain: Finished, tmp_path: Path
) -> None:
    found = carried_out(AROUND[name], request_of, tmp_path)
    assert found.results == plain.results
    assert found.outputs == plain.outputs
    assert plain.outputs
    assert not AROUND[name].same_words or lines(found.printed) == lines(plain.printed)
