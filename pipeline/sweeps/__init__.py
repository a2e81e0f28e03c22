"""Sweeps: many trials of settings, on devices of their own, searched as the sweep file says.

spec.py       what a sweep file asks for           search.py     which settings come next
folder.py     where its files are                  trials.py     what its journal tells, folded
record.py     the journal, one writer at a time    turn.py       what follows from it, pure
agent.py      runs trials on the devices of one machine, until there is nothing left for it
running.py    a trial under way; trial_process.py is the process that runs its program
reporting.py  how a program tells what it has reached
"""

from pipeline.sweeps.reporting import log

__all__ = ["log"]
