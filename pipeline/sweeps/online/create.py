"""Creates a sweep at W&B: a process of its own, as wandb takes seconds to import, prints, and may wait for ever.

Reads what is asked for as JSON from standard input, and prints what came of it as JSON. Whatever else is printed
goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pipeline.machine.descendants import begin


def main() -> int:
    """Create it; 0 where that has worked."""
    begin()
    answer = os.dup(1)
    os.dup2(2, 1)  # wandb prints
    asked = json.loads(sys.stdin.buffer.read())
    try:
        known = _create(asked["config"], asked["entity"], asked["project"])
    except Exception as error:  # wandb has many kinds; where in its code says nothing to a user
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    os.write(answer, json.dumps(known).encode())
    return 0


def _create(config: dict[str, Any], entity: str | None, project: str | None) -> dict[str, Any]:
    import wandb

    sweep_id = wandb.sweep(config, entity=entity, project=project)
    api: Any = wandb.Api()
    return {
        "id": sweep_id,
        "entity": api.settings.get("entity") or api.default_entity,
        "project": api.settings.get("project") or "uncategorized",
    }


if __name__ == "__main__":
    sys.exit(main())
