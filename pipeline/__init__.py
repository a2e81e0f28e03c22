"""A parallel engine for data generation and training rounds of language-model post-training.

Importing the package, planning and scheduling never import torch: only worker processes do, after their
device has been pinned.
"""

__version__ = "0.1.0"
