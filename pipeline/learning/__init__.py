"""Code that runs in workers: algorithms, datasets, rewards, models, generation, training and evaluation."""

import logging

# peft imports bitsandbytes wherever that is installed, which then warns of a kernel that only 4 bits would use.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
