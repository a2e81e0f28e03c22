"""Decoding: per-sample draws, batches, plain and guided decoding with KV caches. Worker side."""
