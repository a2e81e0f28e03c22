"""Sweeps: many trials of settings, on devices of their own, searched as the sweep file says."""
