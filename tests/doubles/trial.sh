# The program of a trial: notes when it runs and on which devices, logs a loss, and does what it is told.
#
#     sh tests/doubles/trial.sh FOLDER --name=value ...
#
# In FOLDER: `hold` keeps trials from their end as long as it is there; `events` gets a line at the beginning and the
# end of each, with the process, its devices and its arguments.
folder=$1
shift
echo "begin $$ $CUDA_VISIBLE_DEVICES $*" >> "$folder/events"
echo "prints $*"
while [ -e "$folder/hold" ]; do sleep 0.2; done
[ -z "$SLEEP" ] || sleep "$SLEEP"
echo '{"step": 1, "values": {"loss": 0.5}}' >> "$PIPELINE_TRIAL"
echo "end $$ $CUDA_VISIBLE_DEVICES $*" >> "$folder/events"
