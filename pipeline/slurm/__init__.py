"""Jobs of Slurm: batch scripts written, checked and submitted.

options.py    options of sbatch, as getopt reads them, and the numbers in them
script.py     what a job is to have, checked -> the text of a batch script
lint.py       a script, or the job of this process -> what would hang, idle or be lost in it
ray_nodes.py  what a script that brings up a Ray cluster runs on the nodes of its job
"""
