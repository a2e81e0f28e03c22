"""Any program on chosen GPUs, one process on each, over one machine or several.

run.py    what was asked for, checked; leases, a clean environment; has agent.py run, and passes signals on
agent.py  a process of its own: torchrun, and the program's exit code
"""
