# Whether this task is ready: sh ready.sh PORT   (startup and readiness probe of every task that listens)
#
# Ready is a task whose port is open, and one that rests after a good end. A task that failed for good is not. The kernel's
# own tables of sockets are read, so this needs no program of the image but `sh`.
if [ -e "$TASK_DIR/done" ]; then
  read -r code < "$TASK_DIR/done"
  [ "$code" -eq 0 ] || echo "the task failed with code $code"
  exit "$code"
fi
port=$(printf '%04X' "$1")
for table in /proc/net/tcp6 /proc/net/tcp; do
  if [ -r $table ]; then
    while read -r _ here _ state _; do
      case "$here $state" in *":$port 0A") exit 0 ;; esac # 0A is LISTEN
    done < $table
  fi
done
echo "nothing listens on port $1"
exit 1
