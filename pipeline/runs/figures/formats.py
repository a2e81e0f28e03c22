"""The formats of figures, for who only asks which there are."""

from __future__ import annotations

from enum import Enum


class Format(Enum):
    """Formats of files that figures are written in."""

    pdf = "pdf"
    svg = "svg"
    png = "png"
