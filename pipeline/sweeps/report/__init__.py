"""A sweep as people read it: on a terminal, as a page, as a table for other programs."""
