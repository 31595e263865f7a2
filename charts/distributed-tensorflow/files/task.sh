# Runs one task: sh task.sh COMMAND [ARGUMENT]...   (ConfigMap of the chart; the command of every task's container)
#
# A StatefulSet restarts its containers for ever. This lets a task end: when the command has ended for good, a marker is
# left in $TASK_DIR, an emptyDir that lives as long as the pod, and a container started after that only rests. The
# command's own exit code is this one's, so it is seen in the pod's status. Needs nothing of the image but `sh`.
#
# TASK_RESTART_POLICY: OnFailure (again unless 0), ExitCode (again from 128 on), Never, or Always.
marker=$TASK_DIR/done
noted=$TASK_NOTES/$TASK_POD
# A pod that replaces another one has no marker, but the supervisor may have noted that its task ended in this very run.
if [ ! -e "$marker" ] && [ -f "$noted" ]; then
  read -r run code < "$noted"
  if [ "$run" = "$TASK_RUN" ]; then echo "$code" > "$marker"; fi
fi
if [ -e "$marker" ]; then
  read -r code < "$marker"
  echo "task: ended with code $code and rests; what it said: kubectl logs --previous $TASK_POD"
  trap 'exit "$code"' TERM INT # as a Job's pod tells its Job
  while :; do sleep 3600 & wait $!; done
fi

starts=0
if [ -e "$TASK_DIR/starts" ]; then read -r starts < "$TASK_DIR/starts"; fi
echo $((starts + 1)) > "$TASK_DIR/starts"
export TASK_RESTARTS="$starts"

# What it says is kept in the training directory too, where that is mounted and the image has what it takes.
said=$TASK_DIR/said
writer=
if [ "$TASK_LOG" ] \
  && { mkdir -p "${TASK_LOG%/*}" && true >> "$TASK_LOG" && rm -f "$said" && mkfifo "$said" && command -v tee; } > /dev/null 2>&1
then
  tee -a "$TASK_LOG" < "$said" &
  writer=$!
  exec > "$said" 2>&1
fi
# An asynchronous command of a shell without job control cannot be interrupted by SIGINT, so it is sent SIGTERM for both;
# also where the signal comes before the child's number is known.
child=
asked=
trap 'asked=yes; [ -z "$child" ] || kill -TERM $child 2> /dev/null' TERM INT
"$@" &
child=$!
[ -z "$asked" ] || kill -TERM $child
wait $child
code=$?
# A signal that was trapped ends `wait` before the child has ended.
while kill -0 $child 2>/dev/null; do
  wait $child
  code=$?
done

over=
case $TASK_RESTART_POLICY in
  Never) over=yes ;;
  OnFailure) if [ "$code" -eq 0 ]; then over=yes; fi ;;
  ExitCode) if [ "$code" -lt 128 ]; then over=yes; fi ;;
esac
if [ "$over" ]; then echo "$code" > "$marker"; fi
if [ "$writer" ]; then
  # The last lines are written, unless what the command left behind holds on to them.
  exec > /dev/null 2>&1
  { sleep 2; kill $writer; } &
  wait $writer
fi
exit "$code"
