"""Which settings come next, and which trials are not worth their end. Pure functions of the trials so far."""
