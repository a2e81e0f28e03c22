"""Algorithms: each lists its stages and has one method per stage; the engine knows nothing else about them."""
