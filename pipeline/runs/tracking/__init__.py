"""Telling trackers (TensorBoard, trackio, wandb) of a run, from the files that it leaves and never in its way.

    engine --> journal, plan, outputs --> a feeder for each tracker, in a process of its own --> the tracker
       |                                     ^      |
       '---- start, the end is near, kill ---'      '--> a note of what it was told, in the order in which it was

Our files are the record: a tracker can be told anew what it has lost, and is told nothing twice.
"""
