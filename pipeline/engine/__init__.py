"""Carries out any plan: devices, workers, the scheduler and the store. It knows nothing of machine learning."""
