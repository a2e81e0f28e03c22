"""Decoding: random draws per sample, batches, plain and guided decoding with KV caches. Used in workers only."""
