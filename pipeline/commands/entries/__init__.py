"""What is typed behind ``python -m pipeline``: commands by family, with their arguments, options and help.

What a command does is imported when it is asked for, so that the others answer at once.
"""
