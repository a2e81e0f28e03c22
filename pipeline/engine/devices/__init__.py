"""Devices: find the machine's GPUs and CPU slots, choose those of a run, and show each worker only its own."""
