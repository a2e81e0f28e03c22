"""From devices to places for jobs."""

from dataclasses import replace

from pipeline.config.schema import ExecutionConfig
from pipeline.engine.devices.inventory import Device, GpuUsage, cpu_slots
from pipeline.engine.devices.select import AUTO_SLOTS, make_layout, plain_layout

GPU = Device(kind="cuda", index=0, uuid="GPU-0", name="NVIDIA A100", memory_total_bytes=80 * 2**30)


def test_workers_go_round_the_devices() -> None:
    layout = make_layout([GPU, GPU, GPU], ExecutionConfig(jobs_per_device=2), {})
    assert layout.workers == 6
    assert [layout.device_of(worker) for worker in range(6)] == [0, 1, 2, 0, 1, 2]
    assert list(layout.workers_of(1)) == [1, 4]
    assert plain_layout(3).workers == 3


def test_a_job_has_devices_of_one_machine() -> None:
    nodes = [0, 0, 0, 0, 1, 1, 2, 2, 2, 2]
    devices = [replace(slot, node=node) for slot, node in zip(cpu_slots(10), nodes, strict=True)]
    layout = make_layout(devices, ExecutionConfig())
    assert layout.most_together(range(10)) == 4
    assert layout.most_together(range(2, 6)) == 2


def test_one_job_is_the_default_and_auto_means_several_on_gpus_alone() -> None:
    assert make_layout([GPU], ExecutionConfig(), {}).slots == 1
    auto = make_layout([GPU], ExecutionConfig(jobs_per_device="auto"), {})
    assert (auto.slots, auto.vouched) == (AUTO_SLOTS, False)
    assert make_layout(cpu_slots(2), ExecutionConfig(jobs_per_device="auto")).slots == 1
    number = make_layout([GPU], ExecutionConfig(jobs_per_device=3), {})
    assert (number.slots, number.vouched) == (3, True)


def test_what_others_use_when_the_run_begins_is_not_there_for_jobs() -> None:
    use = GpuUsage(used_bytes=40 * 2**30, free_bytes=40 * 2**30, total_bytes=80 * 2**30)
    (place,) = make_layout([GPU], ExecutionConfig(), {"GPU-0": use}).places
    assert place.label == "GPU 0 (NVIDIA A100)"
    assert place.free_mb == 40 * 1024
    assert 0.85 * place.free_mb < (place.usable_mb or 0) < 0.9 * place.free_mb
