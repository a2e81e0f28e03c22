"""Which devices a trial can have now."""

from pathlib import Path

import pytest

from pipeline.engine.devices.inventory import Device, cpu_slots, find_gpus
from pipeline.engine.devices.lease import LeaseSet
from pipeline.sweeps.agents.once import AgentDevices
from tests.doubles import fake_nvml


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Device]:
    monkeypatch.setenv("PIPELINE_LEASE_DIR", str(tmp_path / "leases"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_nvml.use(monkeypatch, tmp_path, "two")
    return find_gpus()


def test_what_others_have_is_not_chosen_and_what_is_ours_comes_back(gpus: list[Device]) -> None:
    shelf = AgentDevices(gpus, "lr")
    assert shelf.free([]) == (gpus, 2)
    assert shelf.free(gpus[:1]) == (gpus[1:], 2)
    assert shelf.free([], {"GPU", "0", gpus[0].uuid or ""}) == (gpus[1:], 2), "another agent has chosen it"
    with LeaseSet.acquire(gpus[:1], experiment="somebody"):
        assert shelf.free([]) == (gpus[1:], 1)
    for ours in ("lr", "sweep lr, trial 3"):
        with LeaseSet.acquire(gpus[:1], experiment=ours):
            assert shelf.free([]) == (gpus[1:], 2)


def test_who_has_all_devices_is_told_once_until_some_were_had(gpus: list[Device]) -> None:
    shelf, said = AgentDevices(gpus, "lr"), list[str]()
    shelf.tell_wait(said.append)
    assert said == []
    with LeaseSet.acquire(gpus, experiment="somebody"):
        for _ in range(2):
            shelf.tell_wait(said.append)
        (line,) = said
        assert line.startswith("waiting for devices: GPU 0 has 'somebody' (pid ")
        assert ", GPU 1 has 'somebody' (pid " in line
        shelf.put_back(gpus, seen_free=True)
        shelf.tell_wait(said.append)
        assert len(said) == 2


def test_devices_that_could_not_be_had_are_left_alone_for_longer_each_time(gpus: list[Device]) -> None:
    clock = Clock()
    shelf = AgentDevices(gpus, "lr", clock)
    for pause in (2.0, 4.0, 8.0):
        shelf.pause(gpus[:1])
        clock.now += pause - 0.1
        assert shelf.free([])[0] == gpus[1:]
        clock.now += 0.2
        assert shelf.free([])[0] == gpus
    shelf.put_back(gpus[:1], seen_free=True)
    shelf.pause(gpus[:1])
    clock.now += 2.1
    assert shelf.free([])[0] == gpus


def test_memory_that_a_killed_trial_left_is_waited_for_and_not_for_ever(
    gpus: list[Device], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = Clock()
    shelf = AgentDevices(gpus, "lr", clock)
    full = [fake_nvml.gpu(0, used_gib=9), fake_nvml.gpu(1)]
    fake_nvml.use(monkeypatch, tmp_path, {"gpus": full})
    shelf.put_back(gpus, seen_free=False)
    assert shelf.free([])[0] == gpus[1:]
    fake_nvml.use(monkeypatch, tmp_path, "two")
    assert shelf.free([])[0] == gpus
    fake_nvml.use(monkeypatch, tmp_path, {"gpus": full})
    shelf.put_back(gpus, seen_free=False)
    clock.now += 31
    assert shelf.free([])[0] == gpus


def test_cpu_slots_are_nobodys() -> None:
    slots = cpu_slots(2)
    shelf = AgentDevices(slots, "lr")
    shelf.put_back(slots, seen_free=False)
    assert shelf.free(slots[:1]) == (slots[1:], 2)
