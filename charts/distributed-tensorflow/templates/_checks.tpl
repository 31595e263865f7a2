{{/* Combinations of values that Helm would install, and that would then fail late, wait for ever or have no effect. Each error is
     one sentence that names the key, the value, the rule and the remedy. What the schema, the API server or the trainer refuses by
     itself is not here. */}}

{{- define "distributed-tensorflow.checks" -}}
{{- $values := .Values -}}

{{- /* A longer one installs, but no pod starts: a label of the pods has it and a hash. */}}
{{- $fullname := include "distributed-tensorflow.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$" $fullname) -}}
{{- fail (printf "fullnameOverride: %q (default: the release's name) is not a valid prefix of all names: use at most 40 lower-case letters, digits and dashes, starting with a letter and not ending with a dash." $fullname) -}}
{{- end -}}

{{- if not $values.supervisor.enabled -}}
{{- $supervised := dict
  "run.elastic" $values.run.elastic
  "stages" (or $values.stages.before $values.stages.after)
  "mlflow.trackingUri" $values.mlflow.trackingUri
  "data.watch.enabled" $values.data.watch.enabled
  "scheduling.gang" (eq $values.scheduling.gang "kueue")
-}}
{{- range $key, $isSet := $supervised -}}
{{- if $isSet -}}
{{- fail (printf "%s: it is set, but only the supervisor acts on it, and supervisor.enabled is false; set it to true." $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- include "distributed-tensorflow.checkElastic" . -}}
{{- include "distributed-tensorflow.checkTasks" . -}}
{{- include "distributed-tensorflow.checkVolumes" . -}}
{{- include "distributed-tensorflow.checkPods" . -}}
{{- include "distributed-tensorflow.checkWatch" . -}}
{{- include "distributed-tensorflow.checkStages" . -}}
{{- include "distributed-tensorflow.checkMlflow" . -}}
{{- include "distributed-tensorflow.checkScheduling" . -}}
{{- end }}

{{/* The rules of the tasks and their programs. */}}
{{- define "distributed-tensorflow.checkTasks" -}}
{{- $values := .Values -}}
{{- $worker := include "distributed-tensorflow.role" (dict "root" . "role" "worker") | fromJson -}}
{{- $replicas := int $worker.replicas -}}
{{- $addresses := int $worker.addresses -}}
{{- if not (or $replicas (int $values.chief.replicas)) -}}
{{- fail "worker.replicas: it is 0 and there is no chief, so no task trains; set at least 1, or chief.replicas: 1." -}}
{{- end -}}
{{- if gt $replicas $addresses -}}
{{- fail (printf "worker.replicas: %d is more than the %d addresses of worker.maxReplicas; raise worker.maxReplicas." $replicas $addresses) -}}
{{- end -}}
{{- $foreign := list -}}
{{- $packaged := list -}}
{{- range $spec := include "distributed-tensorflow.roles" . | fromJsonArray -}}
{{- $role := $spec.role -}}
{{- if $spec.packaged }}{{ $packaged = append $packaged $role }}{{ else }}{{ $foreign = append $foreign $role }}{{ end -}}
{{- if and (not $spec.command) (or (not $spec.packaged) (eq $role "client")) -}}
{{- fail (printf "%s.command: it is not set, but only a task of the packaged image has a program by default, and the chart's wrapper replaces an image's entrypoint; set the command, which `docker image inspect -f '{{.Config.Entrypoint}} {{.Config.Cmd}}' IMAGE` shows. (Set an image built FROM the packaged one in image.repository.)" $role) -}}
{{- end -}}
{{- if and $spec.args (not $spec.command) -}}
{{- fail (printf "%s.args: these are arguments of %s.command, which is not set; set it, or use extraArgs for the packaged trainer." $role $role) -}}
{{- end -}}
{{- if and $spec.packaged $spec.gpus $values.image.digest (not (($spec.image | default dict).digest)) -}}
{{- fail (printf "image.digest: it is the digest of the CPU image, and tasks with GPUs need the GPU image; set %s.image.digest too." $role) -}}
{{- end -}}
{{- end -}}
{{- if and $packaged (eq (toString $values.train.strategy) "allreduce") (gt $addresses $replicas) -}}
{{- fail (printf "worker.maxReplicas: with train.strategy allreduce all %d listed workers must take part, but worker.replicas is %d; remove worker.maxReplicas." $addresses $replicas) -}}
{{- end -}}
{{- if and $packaged (has $values.train.dataset (list "mnist" "npz" "lance")) (not $values.data.enabled) (not $values.data.uri) -}}
{{- fail (printf "data.enabled: it is false, but the data set %s of train.dataset is read from a volume; set data.enabled to true, and data.existingClaim to the claim that holds the data, or set data.uri." $values.train.dataset) -}}
{{- end -}}
{{- if and $foreign (include "distributed-tensorflow.clusterIsTooLong" .) -}}
{{- $role := ternary "worker" "ps" (ge $addresses (int $values.ps.replicas)) -}}
{{- $key := printf "%s.replicas" $role -}}
{{- if and (eq $role "worker") (gt $addresses $replicas) -}}
{{- $key = ternary "worker.maxReplicas" "run.elastic.max" (not (empty $values.worker.maxReplicas)) -}}
{{- end -}}
{{- $fit := include "distributed-tensorflow.tasksThatFit" (list . $role) -}}
{{- fail (printf "%s: %d tasks do not fit into TF_CONFIG, as Linux allows 128 KiB for one environment variable, and only the packaged trainer reads the cluster from a file; set at most %s, or a shorter release name." $key (ternary $addresses (int $values.ps.replicas) (eq $role "worker")) $fit) -}}
{{- end -}}
{{- $leader := include "distributed-tensorflow.leaderSpec" . | fromJson -}}
{{- $awaited := ternary (list $leader) list (or $values.supervisor.enabled (eq $leader.role "client")) -}}
{{- if and $values.supervisor.enabled (eq $values.run.successPolicy "AllWorkers") $replicas }}{{ $awaited = append $awaited $worker }}{{ end -}}
{{- range $awaited -}}
{{- if eq .restartPolicy "Always" -}}
{{- fail (printf "%s.restartPolicy: with Always the task never ends, and neither does the run; use ExitCode, OnFailure or Never." .role) -}}
{{- end -}}
{{- end -}}
{{- range $index, $rule := $values.run.failurePolicy.rules -}}
{{- if and $rule.onExitCodes $rule.onPodConditions -}}
{{- fail (printf "run.failurePolicy.rules[%d]: a rule has either onExitCodes or onPodConditions; write two rules." $index) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The rules of run.elastic. */}}
{{- define "distributed-tensorflow.checkElastic" -}}
{{- with .Values.run.elastic -}}
{{- $worker := include "distributed-tensorflow.role" (dict "root" $ "role" "worker") | fromJson -}}
{{- if or (lt (int $worker.replicas) (int .min)) (gt (int $worker.replicas) (int .max)) -}}
{{- fail (printf "run.elastic: worker.replicas is %d, but the limits are %d to %d; set it to a number between them." (int $worker.replicas) (int .min) (int .max)) -}}
{{- end -}}
{{- if not (int $.Values.ps.replicas) -}}
{{- fail "run.elastic: ps.replicas is 0, but workers can only come and go while parameter servers hold the variables; set ps.replicas, or remove run.elastic." -}}
{{- end -}}
{{- if and (not $worker.packaged) (not $worker.maxReplicas) -}}
{{- fail (printf "run.elastic: worker.command is a program of your own; set worker.maxReplicas to %d to state that it trains while listed workers are absent, or remove run.elastic." (int .max)) -}}
{{- end -}}
{{- if and $worker.maxReplicas (lt (int $worker.maxReplicas) (int .max)) -}}
{{- fail (printf "run.elastic.max: %d is more than the %d addresses of worker.maxReplicas; remove worker.maxReplicas or raise it." (int .max) (int $worker.maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The rules of the training directory and the data. */}}
{{- define "distributed-tensorflow.checkVolumes" -}}
{{- $values := .Values -}}
{{- range $key := list "trainingDirectory" "data" -}}
{{- $volume := get $values $key -}}
{{- if and $volume.nfs.path (not $volume.nfs.server) -}}
{{- fail (printf "%s.nfs.server: it is not set; set the server that exports %q." $key $volume.nfs.path) -}}
{{- end -}}
{{- if and $volume.nfs.server $volume.existingClaim -}}
{{- fail (printf "%s.existingClaim: it is set together with %s.nfs, but only one of them can be mounted; remove one." $key $key) -}}
{{- end -}}
{{- if regexMatch "^[^:]+://[^/]*[:@]" $volume.uri -}}
{{- fail (printf "%s.uri: it has a user, a password or a port, which a ConfigMap would show; set them as variables from a Secret instead, as in docs/storage.md." $key) -}}
{{- end -}}
{{- end -}}
{{- with $values.trainingDirectory -}}
{{- if and .uri (or .existingClaim .nfs.server) -}}
{{- fail "trainingDirectory.uri: it is set together with a volume, but the training directory is in one place; remove trainingDirectory.existingClaim and trainingDirectory.nfs." -}}
{{- end -}}
{{- if and $values.tensorboard.enabled (not .enabled) -}}
{{- fail "tensorboard.enabled: TensorBoard reads the training directory, but trainingDirectory.enabled is false; set both to true or both to false." -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The rules of additional fields and of the network. */}}
{{- define "distributed-tensorflow.checkPods" -}}
{{- $values := .Values -}}
{{- $fields := list "containers" "volumes" "serviceAccountName" "serviceAccount" "restartPolicy" "hostname" "subdomain" -}}
{{- $ofTasks := list "initContainers" "securityContext" "imagePullSecrets" "nodeSelector" "tolerations" "affinity" "priorityClassName" "topologySpreadConstraints" "schedulerName" "runtimeClassName" "hostNetwork" "dnsPolicy" "dnsConfig" "hostAliases" "terminationGracePeriodSeconds" -}}
{{- if eq $values.scheduling.gang "workload" }}{{ $ofTasks = append $ofTasks "schedulingGroup" }}{{ end -}}
{{- range $component := list "common" "chief" "worker" "ps" "evaluator" "client" "tensorboard" "supervisor" -}}
{{- $set := ternary $fields (concat $fields $ofTasks) (has $component (list "tensorboard" "supervisor")) -}}
{{- range $field := keys (get (get $values $component) "podSpec" | default dict) | sortAlpha -}}
{{- if has $field $set -}}
{{- fail (printf "%s.podSpec.%s: the chart itself sets this field, from the key for it if there is one; remove it here." $component $field) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $onHost := list -}}
{{- $onPodNetwork := list -}}
{{- range include "distributed-tensorflow.roles" . | fromJsonArray -}}
{{- if .hostNetwork }}{{ $onHost = append $onHost .role }}{{ else }}{{ $onPodNetwork = append $onPodNetwork .role }}{{ end -}}
{{- end -}}
{{- if and $values.networkPolicy.enabled $onHost $onPodNetwork -}}
{{- fail (printf "%s.hostNetwork: it is true, but %s.hostNetwork is false, and the run's NetworkPolicy admits no pod on the network of a node; set both to the same value, or networkPolicy.enabled to false." (first $onHost) (first $onPodNetwork)) -}}
{{- end -}}
{{- end }}

{{/* The rules of the watch of the data. */}}
{{- define "distributed-tensorflow.checkWatch" -}}
{{- if .Values.data.watch.enabled -}}
{{- $leader := include "distributed-tensorflow.leaderSpec" . | fromJson -}}
{{- if not $leader.packaged -}}
{{- fail (printf "data.watch.enabled: it is true, but %s runs a program of your own, to which the chart cannot give the version; set it to false." $leader.role) -}}
{{- end -}}
{{- if ne (toString .Values.train.dataset) "lance" -}}
{{- fail (printf "data.watch.enabled: it is true, but only a Lance dataset has versions, and train.dataset is %q; set train.dataset to lance, and data.uri." (toString (.Values.train.dataset | default ""))) -}}
{{- end -}}
{{- range .Values.extraArgs -}}
{{- if regexMatch "^--(data[-_]version|train[-_]dir)(=|$)" (toString .) -}}
{{- fail (printf "extraArgs: %s takes the place of what data.watch gives to each run; remove it, or set data.watch.enabled to false." .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The rules of the stages. */}}
{{- define "distributed-tensorflow.checkStages" -}}
{{- $values := .Values -}}
{{- $names := ternary (list "publish") list (not (empty $values.mlflow.trackingUri)) -}}
{{- $made := list -}}
{{- range $when := list "before" "after" -}}
{{- if eq $when "after" }}{{ $made = append $made $values.trainingDirectory.path }}{{ end -}}
{{- range $index, $stage := get $values.stages $when -}}
{{- $key := printf "stages.%s[%d]" $when $index -}}
{{- if has $stage.name $names -}}
{{- fail (printf "%s.name: there are two stages %s, of which mlflow.trackingUri adds publish; choose another name." $key $stage.name) -}}
{{- end -}}
{{- $names = append $names $stage.name -}}
{{- $spec := include "distributed-tensorflow.stage" (dict "root" $ "stage" $stage) | fromYaml -}}
{{- $training := include "distributed-tensorflow.trainingIsVolume" $ -}}
{{- if or (and $spec.mountsData (not $values.data.enabled)) (and $spec.mountsTraining (not $training)) -}}
{{- fail (printf "%s.volumes: the stage mounts %s, which is not a volume here; remove it, or set %s." $key (ternary "data" "training" (not (empty $training))) (ternary "data.enabled to true" "trainingDirectory.enabled to true and trainingDirectory.uri to none" (not (empty $training)))) -}}
{{- end -}}
{{- range $stage.needs -}}
{{- if not (has . $made) -}}
{{- fail (printf "%s.needs: no stage before %s makes %s; add it to `makes` of the stage that does, or remove it." $key $stage.name .) -}}
{{- end -}}
{{- end -}}
{{- $made = concat $made ($stage.makes | default list) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The rules of publishing. An address that is wrong would fail the run after the training. */}}
{{- define "distributed-tensorflow.checkMlflow" -}}
{{- with .Values.mlflow.trackingUri -}}
{{- if not (regexMatch "^https?://(\\[[0-9A-Fa-f:.]+\\]|[^]/?#@:\\s]+)(:[0-9]+)?(/[^?#@\\s]*)?$" .) -}}
{{- fail "mlflow.trackingUri: an address such as http://mlflow:5000 was expected, without a user, a password or a query, which the arguments of a pod would show; set these as variables from a Secret in mlflow.envFrom." -}}
{{- end -}}
{{- if not $.Values.trainingDirectory.enabled -}}
{{- fail "mlflow.trackingUri: it is set, but trainingDirectory.enabled is false, so there is no directory that could be published; set it to true, or remove the key." -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The rules of gangs, queues and placement. */}}
{{- define "distributed-tensorflow.checkScheduling" -}}
{{- $values := .Values -}}
{{- with $values.scheduling -}}
{{- $kind := get (include "distributed-tensorflow.gangKinds" $ | fromJson) .gang | default dict -}}
{{- if and .queue (not $kind.queue) -}}
{{- fail (printf "scheduling.queue: it is %q, but scheduling.gang is %q, which has no queues; set scheduling.gang to kueue, or remove scheduling.queue." .queue .gang) -}}
{{- end -}}
{{- if and (eq $kind.queue "required") (has .queue (list "" "default")) -}}
{{- fail (printf "scheduling.queue: it is %q, but scheduling.gang is %s, which needs a queue, and which puts each StatefulSet and Job into one that is called default, so that the run would be counted twice; set the name of another queue." .queue .gang) -}}
{{- end -}}
{{- if and $kind.apis (not (include "distributed-tensorflow.gangApi" $)) -}}
{{- fail (printf "scheduling.gang: it is %s, but the API %s is absent, so nothing would hold the tasks together; install or enable it as in docs/scheduling.md, pass --api-versions to `helm template` if the cluster has it, or remove scheduling.gang." .gang (first $kind.apis)) -}}
{{- end -}}
{{- if and (has .placement (list "pack" "exclusive")) (not .topologyKey) -}}
{{- fail (printf "scheduling.topologyKey: it is not set, but scheduling.placement is %s; set the label of nodes that names their rack or zone, such as topology.kubernetes.io/zone." .placement) -}}
{{- end -}}
{{- if and .topologyKey (not .placement) -}}
{{- fail (printf "scheduling.placement: it is not set, so scheduling.topologyKey %q has no effect; set spread, pack or exclusive." .topologyKey) -}}
{{- end -}}
{{- if eq .placement "spread" -}}
{{- range include "distributed-tensorflow.roles" $ | fromJsonArray -}}
{{- if and .sharesNode (gt (int .replicas) 1) -}}
{{- fail (printf "scheduling.placement: it is spread, but only one node can mount the training directory, and each %s mounts it; set chief.replicas: 1, use trainingDirectory.accessModes: [ReadWriteMany], or remove scheduling.placement." .role) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
