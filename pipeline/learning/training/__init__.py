"""Training: one deterministic loop, batches of labelled sequences, losses. Used in workers only."""
