"""Scheduler: pure state, policy and retry rules, and one loop that has the clocks and side effects."""
