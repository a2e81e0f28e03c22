"""Execution engine: devices, workers, the scheduler and the store.

It runs any plan and knows no machine learning.
"""
