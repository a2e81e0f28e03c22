"""From devices to places for jobs."""

from dataclasses import replace

from pipeline.config.schema import ExecutionConfig
from pipeline.engine.devices.inventory import Device, cpu_slots
from pipeline.engine.devices.select import AUTO_SLOTS, make_layout

GPU = Device(kind="cuda", index=0, uuid="GPU-0", name="NVIDIA A100", memory_total_bytes=80 * 2**30)


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
