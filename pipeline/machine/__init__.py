"""The machine that this runs on: processes that ours have started, and memory."""
