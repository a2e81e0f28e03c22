"""Devices: what this machine has, which of it a run uses, and how a worker is made to see only its own."""
