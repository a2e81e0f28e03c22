"""Runs on disk: read back, pooled into results, and shown."""
