"""Models: loading and keeping them, the tiny reference, and value models. Worker side."""
