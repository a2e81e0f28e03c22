"""What runs inside workers: algorithms, datasets, rewards, models, generation, training and evaluation."""
