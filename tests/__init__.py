"""What all tests begin with: the same process whoever starts them, and arithmetic that is pinned.

Jobs of tests run in this process too, so both come before anything imports NumPy, torch or what reads a variable.
"""

import atexit
import os
import shutil
import signal
import sys
import tempfile
import time


def _forget_who_started_this() -> None:
    """Give this process, and what it starts, the same signals, files and environment whoever started it."""
    # A shell has SIGINT ignored in the background, `nohup` SIGHUP; all that a test starts would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: the next file that is opened would be taken for it
            os.open(os.devnull, os.O_RDWR)
    os.umask(0o022)
    for name in [name for name in os.environ if name.startswith(_OF_THE_USER) and name not in _KEPT]:
        del os.environ[name]
    from pipeline.engine.devices.inventory import THREAD_VARIABLES, is_of_launcher

    for name in filter(is_of_launcher, list(os.environ)):
        del os.environ[name]
    time.tzset()
    home = tempfile.mkdtemp(prefix="pipeline-tests-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    os.environ |= {"HOME": home, "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
    # As workers have it on a CPU. Threads that wait for each other in every small product, while as many tests run
    # as there are cores, take several times as long as one that does it alone.
    os.environ |= dict.fromkeys(THREAD_VARIABLES, "1")
    # As Python is by default: else hundreds of processes compile the package, and each worker of xdist all tests.
    sys.dont_write_bytecode = False


_OF_THE_USER = (
    *("HF_", "HUGGING", "TRANSFORMERS_", "DATASETS_", "TOKENIZERS_", "ACCELERATE_", "FSDP_", "TRL_", "VLLM_"),
    *("WANDB_", "TENSORBOARD_", "MLFLOW_", "TRACKIO_", "RAY_", "SLURM", "SBATCH_", "SRUN_", "HYDRA_", "AWS_"),
    *(
        "NCCL_",
        "GLOO_",
        "TORCH",
        "PYTORCH_",
        "TRITON_",
        "CUBLAS",
        "CUDA_LAUNCH_",
        "CUDA_DEVICE_ORDER",
        "NVIDIA_TF32",
    ),
    *("ATEN_", "ONEDNN_", "DNNL_", "MKL_", "OMP_", "GOMP_", "KMP_", "OPENBLAS_", "NUMEXPR_", "NPY_", "RAYON_"),
    *(
        "PYTHON",
        "LC_",
        "LANG",
        "TZ",
        "COLUMNS",
        "LINES",
        "NO_COLOR",
        "FORCE_COLOR",
        "CLICOLOR",
        "TTY_",
        "XDG_",
        "MPL",
    ),
    *("NVIDIA_TF32", "MPL", "SSL_CERT_", "REQUESTS_CA_", "CURL_CA_"),
    *("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"),
)
"""How the names of variables begin that say something to a library that tests start, or to this package."""
_KEPT = ("PYTHONPATH", "PYTHONHOME", "PYTHONPYCACHEPREFIX")
"""What says where modules are."""

if "pytest" in sys.modules:  # and not in a worker, which imports doubles, and is as the engine has made it
    _forget_who_started_this()
from pipeline import arithmetic  # noqa: E402 - which keeps what it has found outside

arithmetic.pin(*arithmetic.PINS)
