"""Formats of the outputs of jobs, for the code that writes, stores and reads outputs."""
