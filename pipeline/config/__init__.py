"""The request: typed schema, loading, and the rules that tie its fields together."""
