"""Sweeps whose search is that of W&B."""
