"""Native code that never ends. Light imports: grading processes load this module."""

import ctypes
import itertools
from collections import deque


def hold_the_interpreter() -> None:
    """Keep the interpreter's lock for ever, as a bad regular expression does, and no core beside that.

    No other thread of the process runs, and no handler of a signal that is written in Python.
    """
    deque(map(ctypes.PyDLL(None).sleep, itertools.repeat(600)), maxlen=0)
