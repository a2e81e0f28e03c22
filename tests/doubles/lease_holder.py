"""A program that leases GPUs by count, says which, and holds them until its input ends.

python -m tests.doubles.lease_holder EXPERIMENT COUNT refuse|wait
"""

import json
import sys
from typing import Any

from pipeline.config.schema import DeviceChoice, DistributedConfig
from pipeline.engine.devices.select import devices_of
from pipeline.errors import DeviceError


def say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def main() -> None:
    experiment, count, wait = sys.argv[1:4]
    sys.stdin.readline()  # a line starts all programs at the same moment
    wanted = DistributedConfig(num_gpus=int(count))
    try:
        with devices_of(DeviceChoice.cuda, None, wanted).lease(
            wait=wait == "wait",
            experiment=experiment,
            on_wait=lambda why: say(waits=why),
        ) as lease:
            say(holds=[device.index for device in lease.devices])
            sys.stdin.read()
    except DeviceError as error:
        say(refused=str(error))


if __name__ == "__main__":
    main()
