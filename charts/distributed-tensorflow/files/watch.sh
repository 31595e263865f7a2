# Upgrades the release to the version of the data that `trainer data watch` has found, and waits for the end of its run.
# Arguments: the release, its namespace, the place of the training directories without the folder of a version, the key of the
# values for that place, and the revision of the release whose values named no version.
set -eu
release=$1 namespace=$2 base=$3 key=$4 revision=$5
run="--namespace=$namespace --selector=app.kubernetes.io/instance=$release,app.kubernetes.io/component=supervisor"

wait_for_end() {
  kubectl wait job $run --for=jsonpath='{.status.conditions}' --timeout=-1s > /dev/null
}

jobs=$(kubectl get job $run --output=name) # on a line of its own, so that a failure ends the script
if [ -n "$jobs" ] && ! kubectl wait job $run --for=jsonpath='{.status.conditions}' --timeout=0 > /dev/null 2>&1; then
  echo 'waiting for the end of the present run'
  wait_for_end
  echo 'a run that began before has ended: looking for the newest version again'
  exit 1
fi

# An upgrade that is broken off locks the release, so a signal waits for its end.
stopped=
trap 'stopped=yes' TERM INT
setsid --wait helm upgrade "$release" /usr/share/distributed-tensorflow/chart --namespace="$namespace" --reset-then-reuse-values \
  --set-literal="train.data_version=$DATA_VERSION" --set-literal="$key=${base:+$base/}v$DATA_VERSION" \
  --set-literal="data.watch.state.base=$base" --set-literal="data.watch.state.revision=$revision" > /dev/null
[ -z "$stopped" ]
trap - TERM INT

wait_for_end
kubectl logs $run --tail=1
