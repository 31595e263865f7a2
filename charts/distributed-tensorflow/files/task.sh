# Runs one task: sh task.sh COMMAND [ARGUMENT]...   (ConfigMap of the chart; the command of every task's container)
#
# A StatefulSet always restarts its containers. This script lets a task end: when the command has ended for good, the script
# writes a marker into $TASK_DIR, an emptyDir of the pod. A container that starts after that is parked: it only sleeps. The
# script exits with the command's exit code, which the pod's status then shows. The image needs no program except `sh`.
#
# TASK_EXITS says which exit codes are final: see "distributed-tensorflow.exits" in templates/_roles.tpl.
marker=$TASK_DIR/done
ended=$TASK_ENDED/${TASK_NAME:-$TASK_POD}
# A replacement pod has no marker, but the supervisor may have noted that its task has already ended in this run.
if [ ! -e "$marker" ] && [ -f "$ended" ]; then
  read -r run code < "$ended"
  if [ "$run" = "$TASK_RUN" ]; then echo "$code" > "$marker"; fi
fi
if [ -e "$marker" ]; then
  read -r code < "$marker"
  # The supervisor reads the JSON when Kubernetes no longer reports the exit code.
  echo "task: ended with code $code and is parked; its log: kubectl logs --previous $TASK_POD" \
    "#trainer {\"parked\": {\"exit_code\": $code}}"
  trap 'exit "$code"' TERM INT # so that the pod of a Job reports it
  while :; do sleep 3600 & wait $!; done
fi

# Kubernetes starts the new Job of a client at once. While the previous run ends, the supervisor suspends the Job.
if [ "$TASK_WAITS" = yes ] && [ -f "$TASK_ENDED/run" ]; then
  read -r run < "$TASK_ENDED/run"
  if [ "$run" != "$TASK_RUN" ]; then
    trap 'exit 143' TERM INT
    echo "task: waiting for the end of the previous run"
    while :; do sleep 3600 & wait $!; done
  fi
fi

# Kubernetes also starts a task of each role before the stages that come before the training, and before there is a version
# of watched data. When the tasks may start, the supervisor notes the run, and the kubelet updates the file. A task that has
# the version of an earlier run starts again.
if [ "$TASK_WAITS" = start ]; then
  trap 'exit 143' TERM INT
  said=
  while :; do
    run=
    if [ -f "$TASK_ENDED/run" ]; then read -r run < "$TASK_ENDED/run"; fi
    case $run in
      "$TASK_RUN") break ;;
      "${TASK_RUN%.v*}".v*) exit 143 ;;
    esac
    if [ -z "$said" ]; then echo "task: waiting until the supervisor starts the run"; said=yes; fi
    sleep 2 & wait $!
  done
  trap - TERM INT
fi

starts=0
if [ -e "$TASK_DIR/starts" ]; then read -r starts < "$TASK_DIR/starts"; fi
echo $((starts + 1)) > "$TASK_DIR/starts"
export TASK_RESTARTS="$starts"
export TASK_REPORTS=yes # in the log, for the supervisor

# The pod that replaces a task has another address, and a task that restarts is there soon. TensorFlow's gRPC would look the
# address up every 30 seconds, and connect every second.
options=grpc.dns_min_time_between_resolutions_ms=1000,grpc.testing.fixed_reconnect_backoff_ms=200
export TF_GRPC_DEFAULT_OPTIONS="${TF_GRPC_DEFAULT_OPTIONS-$options}"

# Also write the output into the training directory, if it is mounted and the image has the programs for it.
pipe=$TASK_DIR/output
writer=
if [ "$TASK_LOG" ] \
  && { mkdir -p "${TASK_LOG%/*}" && true >> "$TASK_LOG" && rm -f "$pipe" && mkfifo "$pipe" && command -v tee; } > /dev/null 2>&1
then
  tee -a "$TASK_LOG" < "$pipe" &
  writer=$!
  exec > "$pipe" 2>&1
fi
# A background command of a shell without job control ignores SIGINT, so forward both signals as SIGTERM. A signal may
# arrive before the child's process id is known.
child=
stopping=
trap 'stopping=yes; [ -z "$child" ] || kill -TERM $child 2> /dev/null' TERM INT
"$@" &
child=$!
[ -z "$stopping" ] || kill -TERM $child
wait $child
code=$?
# A trapped signal ends `wait` before the child has ended.
while kill -0 $child 2>/dev/null; do
  wait $child
  code=$?
done

final=
for rule in $TASK_EXITS; do
  codes=${rule%:*}
  case $codes in
    !*) case ,${codes#!}, in *",$code,"*) continue ;; esac ;;
    *-*) if [ "$code" -lt "${codes%-*}" ] || [ "$code" -gt "${codes#*-}" ]; then continue; fi ;;
    *) case ,$codes, in *",$code,"*) ;; *) continue ;; esac ;;
  esac
  case $rule in *:End | *:Fail | *:RestartAll) final=yes ;; esac
  break
done
if [ "$final" ]; then echo "$code" > "$marker"; fi
if [ "$writer" ]; then
  # Wait until `tee` has written the last lines, but not for background processes of the command that keep the pipe open.
  exec > /dev/null 2>&1
  { sleep 2; kill $writer; } &
  wait $writer
fi
exit "$code"
