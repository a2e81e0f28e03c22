"""Commands for users: one module for each, and what they share."""
