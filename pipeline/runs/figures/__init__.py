"""Figures of a run for papers: the data of each (pure), how it is drawn, and how it is written."""
