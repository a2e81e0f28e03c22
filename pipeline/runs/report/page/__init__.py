"""A run as one HTML page that needs nothing else: what it shows as plain data, and the page around it."""
