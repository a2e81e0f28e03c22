"""What runs leave in their folders: read back, pooled into results, and shown."""
