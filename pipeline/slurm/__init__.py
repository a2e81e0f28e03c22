"""Jobs of Slurm: batch scripts written, checked, and what those with a Ray cluster run on their nodes."""
