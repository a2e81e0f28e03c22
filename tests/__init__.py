"""Jobs of tests run in this process too: their arithmetic is pinned before anything imports NumPy or torch."""

from pipeline import arithmetic

arithmetic.pin(*arithmetic.PINS)
