"""Store: finished outputs by key, measurements and checkpoints beside them, and their clean-up."""
