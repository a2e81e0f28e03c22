"""Train and compare: ``python run_parallel.py experiment.name=NAME [key=value ...]``.

Kept thin and guarded: nothing here may import torch, and nothing runs when the module is only imported.
"""

import sys

from pipeline.commands.start import start

if __name__ == "__main__":
    start("pipeline.cli:main", sys.argv[1:])
