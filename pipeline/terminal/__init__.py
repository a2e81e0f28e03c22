"""Print to terminals, pipes and files: escape foreign text, and go on when nobody reads any more.

Three rules: foreign text is shown and never obeyed; text that a stream has no characters for is replaced; a stream
that cannot be written any more is written no more, which decides over nothing else.

streams.py  text that is fit to go out, streams that last, and logs on their way through them; without Rich
columns.py  tables that fit where they are shown; as HTML too
console.py  the console of every command; checks; what is shown again and again
"""
