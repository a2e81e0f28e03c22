"""Decides what runs where (pure policy over state) and carries it out (the loop)."""
