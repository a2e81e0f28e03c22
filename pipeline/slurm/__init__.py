"""Jobs of Slurm: batch scripts written, looked through and handed over.

header.py   #SBATCH lines, as sbatch reads them and as they are written
request.py  what a job is to have, checked
script.py   request -> the text of a batch script
job.py      a job in numbers, as a script or the environment has it
rules.py    what a job asks for against what its program needs: one message for each fault
body.py     the commands of a script, line by line
lint.py     a script -> rules
submit.py   the one module that starts a program, sbatch
"""
