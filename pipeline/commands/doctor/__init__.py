"""What may be wrong with a machine, found before it costs a run: ``python test_parallel_setup.py``.

`facts` asks the system, once, and is the only module that does. `devices`, `environment` and `host` are pure
functions on those facts, and so is `pipeline.slurm.rules`: each says what it saw, how bad that is, and what to do.
`setup` checks packages, configuration and store; `generation` proves parallel work with real workers.
"""
