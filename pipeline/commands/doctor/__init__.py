"""What may be wrong with a machine, found before it costs a run: ``python test_parallel_setup.py``.

`facts` asks the system, once. `machine` has pure functions on those facts: each says what it saw, how bad that is,
and what to do. `setup` checks packages, configuration and store; `proof` has real workers generate and compute.
"""
