"""A launcher whose runs are carried out by another process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import cloudpickle
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

PLACE = "hydra_plugins.doubles"
"""Where Hydra wants plugins to be from."""
REPLY = "reply.pkl"


class Elsewhere(Launcher):
    """Sends every run to one fresh process, as launchers of clusters do."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context, self.task, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        folder = Path(str(self.config.hydra.sweep.dir)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        order = (
            self.context,
            self.task,
            self.config,
            [list(each) for each in job_overrides],
            Singleton.get_state(),
        )
        (folder / "order.pkl").write_bytes(cloudpickle.dumps(order))
        # It starts in another folder, where a relative PYTHONPATH would find another copy of this code, or none.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        subprocess.run([sys.executable, "-m", __name__, str(folder)], check=True, timeout=600, env=environment)
        returned: list[JobReturn] = cloudpickle.loads((folder / REPLY).read_bytes())
        return returned


def carry_out(folder: Path) -> None:
    """The other process."""
    context, task, config, overrides, singletons = cloudpickle.loads((folder / "order.pkl").read_bytes())
    Singleton.set_state(singletons)
    setup_globals()
    ended = []
    for number, own in enumerate(overrides):
        composed = context.config_loader.load_sweep_config(config, own)
        with open_dict(composed.hydra.job) as job:
            job.id, job.num = str(number), number
        ended.append(
            run_job(
                hydra_context=context,
                task_function=task,
                config=composed,
                job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
            )
        )
    (folder / REPLY).write_bytes(cloudpickle.dumps(ended))


for plugin in (Elsewhere,):
    Plugins.instance().class_name_to_class[f"{PLACE}.{plugin.__name__}"] = plugin

if __name__ == "__main__":
    carry_out(Path(sys.argv[1]))
