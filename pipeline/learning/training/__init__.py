"""Training: one deterministic loop, batches of labelled sequences, losses. Worker side."""
