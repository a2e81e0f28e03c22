"""What people look at: the table of results, the live view, the printed plan. Reads `results` only."""
