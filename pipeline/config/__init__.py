"""Configuration: typed schema, loading, and rules between its fields."""
