"""Any program on chosen GPUs, one process on each, over one machine or several.

request.py    what was asked for, checked; where the processes meet
run.py        leases, a clean environment; has agent.py run
supervise.py  signals are passed on to a process, and what it has started ends with it
agent.py      a process of its own: torchrun, and the program's exit code
"""
