"""CUDA_VISIBLE_DEVICES is read as CUDA reads it, and what CUDA would drop is told."""

import itertools
import random

import pytest
import torch

from pipeline.engine.devices.inventory import entries_of, read_mask

GPUS = ["GPU-0aaa-1", "GPU-0aab-2", "GPU-1ccc-3", "GPU-2ddd-4"]
SLICES = {"MIG-5e5e": f"MIG-{GPUS[0]}/7/0", "MIG-6f6f": f"MIG-{GPUS[0]}/8/0"}


@pytest.mark.parametrize(
    ("mask", "positions"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("NoDevFiles", []),
        ("1", [1]),
        ("2,0", [2, 0]),
        (" 0 , 1 ", [0, 1]),
        ("2abc,0x1", [2, 0]),
        ("0,1,-1", [0, 1]),
        ("GPU-2ddd-4,GPU-0aaa", [3, 0]),
    ],
)
def test_a_mask_selects_and_orders(mask: str | None, positions: list[int]) -> None:
    seen = read_mask(mask, GPUS)
    assert (list(seen.uuids), seen.fault) == ([GPUS[place] for place in positions], None)


@pytest.mark.parametrize(
    ("mask", "positions", "said"),
    [
        ("4", [], "'4' names no GPU"),
        ("0,1,99,2", [0, 1], "'99' names no GPU"),
        ("0,x", [0], "'x' is no GPU"),
        ("0,-1,2", [0], "'-1' is no GPU"),
        ("0,1,0", [], "'0' is given twice"),
        ("GPU-0aa", [], "matches several"),
        ("GPU-1,0", [2], "'0' is not a name"),
        ("GPU-1,MIG-5", [2], "'MIG-5' is not a name"),
        ("GPU-1,GPU-1", [], "given twice"),
        ("GPU-1,GPU-1ccc", [], "'GPU-1ccc' names a GPU that was named before"),
    ],
)
def test_what_cuda_drops_is_told(mask: str, positions: list[int], said: str) -> None:
    seen = read_mask(mask, GPUS)
    assert list(seen.uuids) == [GPUS[place] for place in positions]
    assert said in (seen.fault or "")


@pytest.mark.parametrize(
    ("mask", "uuids"),
    [
        (None, [*GPUS, *SLICES]),
        ("MIG-5", ["MIG-5e5e"]),
        ("MIG-6f6f,MIG-5e5e", ["MIG-6f6f", "MIG-5e5e"]),
        (f"MIG-{GPUS[0]}/8/0", ["MIG-6f6f"]),
    ],
)
def test_slices_have_two_kinds_of_names(mask: str | None, uuids: list[str]) -> None:
    assert list(read_mask(mask, GPUS, SLICES).uuids) == uuids


def masks() -> list[str]:
    """Every short combination of entries that mean something, and long random ones."""
    entries = ["0", "1", "3", "4", "99", "-1", "-2", "", " ", " 2 ", "+0", "2abc", "x", "0x1", "007", "1 2"]
    entries += [
        "GPU-0aaa-1",
        "GPU-0aaa",
        "GPU-0aa",
        "GPU-",
        "GPU-9",
        " GPU-1",
        "GPU-1",
        "MIG-5",
        "MIG-5e5e",
        "GPU",
    ]
    short = [",".join(some) for size in (1, 2) for some in itertools.product(entries, repeat=size)]
    draw = random.Random(0)
    return short + [",".join(draw.choices(entries, k=draw.randint(3, 7))) for _ in range(3000)]


def test_it_agrees_with_torchs_own_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "_raw_device_count_nvml", lambda: len(GPUS))
    monkeypatch.setattr(cuda, "_raw_device_uuid_nvml", lambda: GPUS)
    compared = {"same": 0, "fault": 0, "slices": 0}
    for mask in masks():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
        theirs = cuda._parse_visible_devices()
        ours, _ = entries_of(mask)
        assert ours == theirs, mask
        if mask.startswith("MIG-"):  # torch asks CUDA about these
            compared["slices"] += 1
            continue
        seen = read_mask(mask, GPUS)
        assert len(seen.uuids) == cuda._device_count_nvml(), mask
        if theirs and isinstance(theirs[0], str):
            ordinals = cuda._transform_uuid_to_ordinals(theirs, GPUS)
        else:
            ordinals = theirs
        assert list(seen.uuids) == [GPUS[place] for place in ordinals[: len(seen.uuids)]], mask
        compared["fault" if seen.fault else "same"] += 1
    assert min(compared.values()) > 50
