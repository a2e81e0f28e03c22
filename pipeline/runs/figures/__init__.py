"""What a run found, as figures for a paper. Here is what who only asks for their formats needs."""

from enum import Enum


class Format(Enum):
    """Formats of files that figures are written in."""

    pdf = "pdf"
    svg = "svg"
    png = "png"
