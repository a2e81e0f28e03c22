"""What users type: one module for each command, and what they share."""
