"""The sweep file: read, checked whole, turned into distributions and command lines."""
