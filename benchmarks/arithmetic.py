"""What portable arithmetic costs: the same training and decoding with it and without, in turns.

    python -m benchmarks.arithmetic [--repeats 5]

Prints CPU seconds of the fingerprint's work (imitation, a value model, guided decoding) in fresh processes, and
the ratio of the medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

from pipeline import arithmetic

_WORK = """
import time
from pipeline.learning.algos.stage_entry import prepare_torch
from pipeline.learning.algos.machine_check import fingerprint
prepare_torch(1)
fingerprint()
begun = time.process_time()
fingerprint()
print(time.process_time() - begun)
"""


def seconds(*, portable: bool) -> float:
    """CPU seconds of one process, its first round of work left out."""
    environment = arithmetic.outside(os.environ) | {"OMP_NUM_THREADS": "1"}
    if portable:
        environment = arithmetic.pinned(environment, *arithmetic.PINS)
    done = subprocess.run(
        [sys.executable, "-c", _WORK], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> None:
    """Measure in turns, so that both see the same machine."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    pairs = [(seconds(portable=True), seconds(portable=False)) for _ in range(repeats)]
    portable, plain = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"portable {portable:.2f} s, as the processor suggests {plain:.2f} s: {portable / plain:.2f} x")


if __name__ == "__main__":
    main()
