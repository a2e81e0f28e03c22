"""What trackers have of the chain of `tracked`, read by their packages: ``python -m ... TRACKER... OUTPUT_DIR``.

Prints JSON: tracker -> name -> [place, value] of every point, in the order in which they stand there, and more.
A process of its own, since the packages take long to import and stay for good.
"""

import json
import os
import struct
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def tensorboard(output_dir: Path) -> dict[str, Any]:
    sys.modules["torch"] = None  # type: ignore[assignment] # which the package would import
    from tensorboardX.proto.event_pb2 import Event

    root = output_dir / "x" / "tracking" / "tensorboard"
    found: dict[str, Any] = defaultdict(list)
    for path in root.rglob("*tfevents*"):
        found["runs"].append(str(path.parent.relative_to(root)))
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + length])
            at += 12 + length + 4
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found[value.tag].append((event.step, round(value.simple_value, 6)))
                else:
                    found[value.tag].append((event.step, value.tensor.string_val[0].decode()))
    return found


def trackio(output_dir: Path) -> dict[str, Any]:
    os.environ["TRACKIO_DIR"] = str(output_dir / ".trackio")
    from trackio.sqlite_storage import SQLiteStorage

    found: dict[str, Any] = defaultdict(list)
    for record in SQLiteStorage.get_run_records("x"):
        config = SQLiteStorage.get_run_config("x", run=record["name"], run_id=record["id"])
        found["runs"].append(record["name"])
        found["settings"].append(config)
        for row in SQLiteStorage.get_logs("x", record["name"], run_id=record["id"]):
            for name, value in row.items():
                found[name].append((row["step"], value))
    return found


def wandb(output_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = defaultdict(list)
    for path in (output_dir / "x" / "tracking" / "wandb").glob("offline-run-*/*.wandb"):
        for record in _records(path.read_bytes()):
            if record.WhichOneof("record_type") == "run":
                found["runs"].append(record.run.display_name)
                found["group"].append(record.run.run_group)
                found["id"].append(record.run.run_id)
                found["sweep"].append(record.run.sweep_id)
                found["settings"].append(
                    {item.key: json.loads(item.value_json) for item in record.run.config.update}
                )
            if record.WhichOneof("record_type") == "history":
                row = {
                    "/".join(item.nested_key) or item.key: json.loads(item.value_json)
                    for item in record.history.item
                }
                for name, value in row.items():
                    found[name].append((row["train/step" if "train/step" in row else "round"], value))
    return found


def _records(data: bytes) -> Iterator[Any]:
    """Records of wandb's own file, in the format of LevelDB's logs after a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    at, record = 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part of one
            yield Record.FromString(record)
            record = b""


if __name__ == "__main__":
    read = {"tensorboard": tensorboard, "trackio": trackio, "wandb": wandb}
    print(json.dumps({name: read[name](Path(sys.argv[-1])) for name in sys.argv[1:-1]}))
