"""Finished outputs by key, what is remembered beside them, and what may be removed."""
