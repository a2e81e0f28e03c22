"""Rewards in TRL's signature."""
