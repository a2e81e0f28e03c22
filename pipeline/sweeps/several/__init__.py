"""Commands side by side on devices of their own."""
