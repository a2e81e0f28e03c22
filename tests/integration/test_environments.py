"""Nothing of a user's environment decides bytes, keys or whether workers start."""

from __future__ import annotations

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
        "HF_HUB_ENABLE_HF_TRANSFER=1 HF_HUB_VERBOSITY=debug TRANSFORMERS_VERBOSITY=debug "
        "DATASETS_VERBOSITY=debug TOKENIZERS_PARALLELISM=true CUDA_VISIBLE_DEVICES= "
        "CUDA_DEVICE_ORDER=FASTEST_FIRST"
    ),
    "the hub, where nobody may write": Around(
        "HF_HOME=HERE/read-only TRANSFORMERS_CACHE=HERE/read-only HOME=HERE/read-only "
        "XDG_CACHE_HOME=HERE/read-only TRANSFORMERS_VERBOSITY=error HF_TOKEN= HF_DEBUG=1 "
        "TOKENIZERS_PARALLELISM=false RAYON_NUM_THREADS=3 CUDA_VISIBLE_DEVICES=-1",
        by=WITHOUT_RIGHTS,
    ),
    "W&B": Around(
        'WANDB_MODE=offline WANDB_PROJECT="an odd/project" WANDB_RUN_ID=a WANDB_SWEEP_ID=b '
        "WANDB_DIR=/proc/nowhere WANDB_API_KEY=odd WANDB_RESUME=must WANDB_ENTITY=c "
        "WANDB_SWEEP_PARAM_PATH=/nonexistent WANDB_LOG_MODEL=true MLFLOW_TRACKING_URI=http://127.0.0.1:9 "
        "TRACKIO_DIR=/nonexistent COMET_MODE=online",
        same_words=False,  # it is told that the sweep hears nothing
    ),
    "W&B disabled, no device, odd threads": Around(
        "WANDB_MODE=disabled WANDB_DISABLED=true CUDA_VISIBLE_DEVICES=NoDevFiles OMP_NUM_THREADS=abc "
        "MKL_NUM_THREADS=0 NUMEXPR_NUM_THREADS=x NUMEXPR_MAX_THREADS=0 OMP_DISPLAY_ENV=true"
    ),
    "a torchrun left over, Ray": Around(
        "RANK=3 WORLD_SIZE=8 LOCAL_RANK=3 LOCAL_WORLD_SIZE=8 NODE_RANK=1 MASTER_ADDR=10.255.255.1 "
        "MASTER_PORT=many TORCHELASTIC_RUN_ID=a PMI_RANK=1 OMPI_COMM_WORLD_RANK=2 RAY_ADDRESS=10.255.255.1:6379 "
        "NCCL_DEBUG=INFO ACCELERATE_MIXED_PRECISION=bf16 ACCELERATE_USE_FSDP=true ACCELERATE_USE_DEEPSPEED=true "
        "ACCELERATE_TORCH_DEVICE=odd FSDP_VERSION=9 OMP_NUM_THREADS=0 OMP_STACKSIZE=64K"
    ),
    "Slurm, threads, instructions": Around(
        "SLURM_JOB_ID=7 SLURM_PROCID=3 SLURM_NTASKS=8 SLURM_CPUS_PER_TASK=7 SLURM_JOB_GPUS=0,1 SLURM_NODEID=1 "
        'SLURM_STEP_ID=0 SLURM_LOCALID=3 SLURM_JOB_NODELIST="n[1-2]" SLURMD_NODENAME=n2 SLURM_MEM_PER_NODE=1024 '
        "OMP_NUM_THREADS=4,2 OMP_PROC_BIND=spread OMP_PLACES=cores OMP_THREAD_LIMIT=1 OMP_DYNAMIC=true "
        "OMP_WAIT_POLICY=active MKL_NUM_THREADS=-1 MKL_DYNAMIC=true KMP_AFFINITY=verbose,scatter "
        "GOMP_CPU_AFFINITY=0 MKL_CBWR=AVX512 ONEDNN_MAX_CPU_ISA=SSE41 DNNL_MAX_CPU_ISA=SSE41 "
        "ATEN_CPU_CAPABILITY=default OPENBLAS_CORETYPE=Nehalem NPY_DISABLE_CPU_FEATURES=X86_V4 "
        "NVIDIA_TF32_OVERRIDE=1 TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1"
    ),
    "torch, other instructions": Around(
        "MKL_ENABLE_INSTRUCTIONS=SSE4_2 MKL_DEBUG_CPU_TYPE=5 NPY_ENABLE_CPU_FEATURES=X86_V3 MKL_VERBOSE=1 "
        "ONEDNN_DEFAULT_FPMATH_MODE=BF16 DNNL_DEFAULT_FPMATH_MODE=ANY ONEDNN_VERBOSE=1 OMP_NUM_THREADS=7 "
        "ONEDNN_CPU_ISA_HINTS=PREFER_YMM ONEDNN_PRIMITIVE_CACHE_CAPACITY=0 TORCH_MKLDNN_MATMUL_MIN_DIM=1 "
        "TORCH_LINEAR_FLATTEN_3D=1 TRANSFORMERS_SDPA_FORCE_GQA=1 TORCH_LOGS=+dynamo "
        "TORCH_DEVICE_BACKEND_AUTOLOAD=0 TORCH_HOME=/nonexistent PYTORCH_CUDA_ALLOC_CONF=odd:words "
        "PYTORCH_JIT=0 TORCH_SHOW_CPP_STACKTRACES=1 "
        "TORCH_CPP_LOG_LEVEL=INFO TORCH_FORCE_WEIGHTS_ONLY_LOAD=1 CUDA_LAUNCH_BLOCKING=1 TORCHDYNAMO_DISABLE=1 "
        "TORCHINDUCTOR_CACHE_DIR=/proc/nowhere "
        "PYTORCH_TUNABLEOP_ENABLED=1 USE_TORCH=0 USE_TF=1"
    ),
    "Python": Around(
        "PYTHONHASHSEED=12345 PYTHONOPTIMIZE=2 PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1 "
        "PYTHONNOUSERSITE=1 PYTHONFAULTHANDLER=1 PYTHONINTMAXSTRDIGITS=640 PYTHONNODEBUGRANGES=1 "
        "PYTHONPATH=ROOT"
    ),
    "Python that takes warnings for errors": Around("PYTHONHASHSEED=random PYTHONWARNINGS=error PYTHONDEVMODE=1"),
    "plain encodings": Around(
        "PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 PYTHONIOENCODING=ascii LC_ALL=C LANG TERM TZ=Pacific/Kiritimati "
        "NO_COLOR=1 COLUMNS=abc",
        same_words=False,
    ),
    "no language, no way out": Around(
        "LC_ALL=tr_TR.UTF-8 LANG=tr_TR.UTF-8 LC_NUMERIC=de_DE TZ=No/Sense TERM=dumb FORCE_COLOR=1 LINES=0 "
        "COLUMNS=20 PYTHONIOENCODING=latin-1:strict http_proxy=http://127.0.0.1:9 "
        "https_proxy=http://127.0.0.1:9 HTTPS_PROXY=http://127.0.0.1:9 ALL_PROXY=socks5://127.0.0.1:9 NO_PROXY "
        "SSL_CERT_FILE=/nonexistent REQUESTS_CA_BUNDLE=/nonexistent EDITOR=false HYDRA_FULL_ERROR=1 "
        "AWS_PROFILE=nobody",
        same_words=False,
    ),
    "nobody": Around(
        'HOME USER LOGNAME TMPDIR="HERE/an odd täg" PATH=/usr/bin:/bin PYTHONHASHSEED=0 PYTHONWARNINGS=always'
    ),
    "no home": Around("HOME=/nonexistent TMPDIR=/nonexistent XDG_CACHE_HOME=/proc/nowhere PATH"),
    "an odd home, through a link": Around(
        "HOME=relative XDG_RUNTIME_DIR=/nonexistent MPLCONFIGDIR=/proc/nowhere", before="cd ../link;"
    ),
    "nothing": Around(alone=True),
    "a long name, folders of --target": Around(
        "PYTHONPATH=ROOT:PACKAGES", outputs=f"{'an odd näme ' * 6}/{'数' * 50} {'x' * 40}"
    ),
    "an odd umask": Around(before="umask 077; exec <&-; ulimit -Sn 256;"),
    "no output": Around(before="exec >&- 2>&-;", same_words=False),
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
