"""Sweeps: many trials of settings, on devices of their own, searched as the sweep file says.

file.py            what a sweep file asks for         plan.py            which devices, how many agents
storage.py         the record: a study of Optuna, and which settings it chooses next
command.py         the command of a trial             agent.py           runs trials on the devices of one machine
trial_process.py   the process that runs a program, from both of its ends
metrics.py         what programs log, here or to W&B  online.py          a sweep that W&B searches
report.py          tables, files, the page            multi.py           several runs by one command
reporting.py       how a program tells what it has reached
"""

from pipeline.sweeps.reporting import log

__all__ = ["log"]
