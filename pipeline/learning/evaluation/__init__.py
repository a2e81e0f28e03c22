"""Evaluation: metrics of samples, and intervals that respect which samples share a prompt. Worker side."""
