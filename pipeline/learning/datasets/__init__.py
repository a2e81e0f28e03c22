"""Datasets: deterministic rows by split. Free of torch, since planning reads their vocabulary and notes."""
