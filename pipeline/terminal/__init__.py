"""The border to whoever reads what is printed: what may go out, and what happens when nobody is there any more.

Three rules: foreign text is shown and never obeyed; text that a stream has no characters for is replaced; a stream
that cannot be written any more is written no more, which decides over nothing else.
"""
