"""Compute the memory that a model needs, and find the way of training that fits."""
