"""Code as a user would write it, outside of the package: docs/extending.md goes through it step by step."""
