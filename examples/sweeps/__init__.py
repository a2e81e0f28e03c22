"""Sweep files, and a program for one: docs/sweeps.md goes through them."""
