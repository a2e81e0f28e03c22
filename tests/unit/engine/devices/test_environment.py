"""The environment of a worker."""

from pipeline.engine.devices.inventory import ON_GPUS, Device, cpu_slots, describe_device, worker_environment

GPU = Device(kind="cuda", index=3, uuid="GPU-0123", name="H200", memory_total_bytes=1)


def test_a_gpu_is_named_by_its_uuid() -> None:
    env = worker_environment(GPU, 4, {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "HOME": "/home/me"})
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-0123"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert env["HOME"] == "/home/me"
    assert describe_device(GPU, env) == "GPU-0123 as cuda:0"


def test_a_cpu_slot_sees_no_gpu_and_has_its_threads() -> None:
    slot = cpu_slots(2)[1]
    env = worker_environment(slot, 2, {"OMP_NUM_THREADS": "64"})
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert {env[f"{library}_NUM_THREADS"] for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")} == {"2"}
    assert describe_device(slot, env) == "cpu slot 1, 2 threads"
    assert describe_device(slot, worker_environment(slot, 1, {})) == "cpu slot 1, 1 thread"


def test_the_ranks_of_a_launcher_are_not_inherited() -> None:
    launcher = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    kept = {"RANKING": "kept", "PMIX_MCA_gds": "hash"}  # settings of Open MPI, which images have in every process
    env = worker_environment(GPU, 1, {**launcher, "TORCHELASTIC_RUN_ID": "x", "PMIX_RANK": "1", **kept})
    assert not {*launcher, "TORCHELASTIC_RUN_ID", "PMIX_RANK"} & set(env)
    assert kept.items() <= env.items()


def test_workers_do_not_get_what_moves_or_rounds_or_strips() -> None:
    """Bound to the first core, as clusters have it, all workers would share that one."""
    told = {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores", "GOMP_CPU_AFFINITY": "0", "OMP_THREAD_LIMIT": "1"}
    told |= {"NVIDIA_TF32_OVERRIDE": "1", "DNNL_DEFAULT_FPMATH_MODE": "ANY"}
    told |= {"PYTHONOPTIMIZE": "2", "PYTHONWARNINGS": "error"}
    for device in (GPU, cpu_slots(1)[0]):
        assert not told.keys() & worker_environment(device, 1, told).keys()


def test_attention_and_memory_of_a_gpu_are_set_unless_the_user_has() -> None:
    env = worker_environment(GPU, 1, {})
    assert env["TORCH_CUDNN_SDPA_DEPRIORITIZED"] == "1"
    assert env["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    own = {"TORCH_CUDNN_SDPA_DEPRIORITIZED": "0", "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    env = worker_environment(GPU, 1, own)
    assert own.items() <= env.items()
    assert "PYTORCH_ALLOC_CONF" not in env
    assert not ON_GPUS.keys() & worker_environment(cpu_slots(1)[0], 1, {}).keys()
