# Whether this task is ready: sh ready.sh [PORT]   (startup and readiness probe of every task that others may wait for)
#
# A task is ready if its port is open, or if it ended with code 0 and is parked. A task that failed for good is not ready.
# Without a port, the task is ready while it runs.
# The script reads the kernel's socket tables, so the image needs no program except `sh`.
if [ -e "$TASK_DIR/done" ]; then
  read -r code < "$TASK_DIR/done"
  [ "$code" -eq 0 ] || echo "the task failed with code $code"
  exit "$code"
fi
[ $# -gt 0 ] || exit 0
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
