"""Jobs of Slurm: batch scripts written and checked.

script.py     options of sbatch; what a job is to have, checked -> the text of a batch script; a script, or the
              job of this process -> what would hang, idle or be lost in it
ray_nodes.py  what a script that brings up a Ray cluster runs on the nodes of its job
"""
