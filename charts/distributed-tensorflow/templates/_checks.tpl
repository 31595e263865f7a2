{{/* Rules that the schema cannot express, or not in a sentence without a regular expression. Each error is one sentence that
     names the key, the value, the rule and the remedy. */}}

{{- define "distributed-tensorflow.checks" -}}
{{- $values := .Values -}}

{{- include "distributed-tensorflow.checkKeys" . -}}
{{- $fullname := include "distributed-tensorflow.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$" $fullname) -}}
{{- fail (printf "fullnameOverride: %q (default: the release's name) is not a valid prefix of all names: use at most 40 lower-case letters, digits and dashes, starting with a letter and not ending with a dash." $fullname) -}}
{{- end -}}

{{- include "distributed-tensorflow.checkFormats" . -}}
{{- include "distributed-tensorflow.checkPods" . -}}
{{- include "distributed-tensorflow.checkReserved" . -}}
{{- include "distributed-tensorflow.checkStages" . -}}
{{- include "distributed-tensorflow.checkMlflow" . -}}
{{- include "distributed-tensorflow.checkScheduling" . -}}

{{- $worker := include "distributed-tensorflow.role" (dict "root" . "role" "worker") | fromJson -}}
{{- $replicas := int $worker.replicas -}}
{{- $addresses := int $worker.addresses -}}
{{- if not (or $replicas (int $values.chief.replicas)) -}}
{{- fail "worker.replicas: it is 0 and there is no chief, so no task trains; set at least 1, or chief.replicas: 1." -}}
{{- end -}}
{{- include "distributed-tensorflow.checkElastic" . -}}
{{- include "distributed-tensorflow.checkWatch" . -}}
{{- if gt $replicas $addresses -}}
{{- fail (printf "worker.replicas: %d is more than the %d addresses of worker.maxReplicas; raise worker.maxReplicas." $replicas $addresses) -}}
{{- end -}}

{{- $foreign := list -}}
{{- $packaged := list -}}
{{- range $spec := include "distributed-tensorflow.roles" . | fromJsonArray -}}
{{- $role := $spec.role -}}
{{- if $spec.packaged }}{{ $packaged = append $packaged $role }}{{ else }}{{ $foreign = append $foreign $role }}{{ end -}}
{{- if and (not $spec.packaged) (not $spec.command) -}}
{{- fail (printf "%s.command: the image %q is not the packaged one, and the chart's wrapper replaces an image's entrypoint, so set the command; `docker image inspect -f '{{.Config.Entrypoint}} {{.Config.Cmd}}' IMAGE` shows it. (Set an image built FROM the packaged one in image.repository.)" $role $spec.image.repository) -}}
{{- end -}}
{{- if and $spec.packaged (eq $role "client") -}}
{{- fail "client.command: the packaged trainer cannot run as a client; set the program that connects to the cluster." -}}
{{- end -}}
{{- if and $spec.args (not $spec.command) -}}
{{- fail (printf "%s.args: these are arguments of %s.command, which is not set; set it, or use extraArgs for the packaged trainer." $role $role) -}}
{{- end -}}
{{- if and $spec.packaged $spec.gpus $values.image.digest (not (($spec.image | default dict).digest)) -}}
{{- fail (printf "image.digest: it is the digest of the CPU image, and tasks with GPUs need the GPU image; set %s.image.digest too." $role) -}}
{{- end -}}
{{- end -}}
{{- $strategy := toString $values.train.strategy -}}
{{- if $packaged -}}
{{- $alone := include "distributed-tensorflow.isAlone" . -}}
{{- if and (ne $strategy "allreduce") (not (int $values.ps.replicas)) (not $alone) -}}
{{- if and (gt $addresses $replicas) (eq (add $replicas (int $values.chief.replicas) | int) 1) -}}
{{- fail (printf "worker.maxReplicas: it is %d, but without parameter servers a single replica trains alone, and no worker can join it; remove worker.maxReplicas, or set ps.replicas to at least 1." $addresses) -}}
{{- end -}}
{{- fail "ps.replicas: it is 0, but several replicas of the packaged trainer keep their variables on parameter servers; set at least 1, or train.strategy: allreduce." -}}
{{- end -}}
{{- if and (eq $strategy "allreduce") (int $values.ps.replicas) -}}
{{- fail (printf "ps.replicas: it is %d, but with train.strategy allreduce the replicas hold the variables; set it to 0." (int $values.ps.replicas)) -}}
{{- end -}}
{{- if and (eq $strategy "allreduce") (gt $addresses $replicas) -}}
{{- fail (printf "worker.maxReplicas: with train.strategy allreduce all %d listed workers must take part, but worker.replicas is %d; remove worker.maxReplicas." $addresses $replicas) -}}
{{- end -}}
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
{{- if and (or $values.supervisor.enabled (eq $leader.role "client")) (eq $leader.restartPolicy "Always") -}}
{{- fail (printf "%s.restartPolicy: with Always the task never ends, and neither does the run; use ExitCode, OnFailure or Never." $leader.role) -}}
{{- end -}}

{{- if and $values.supervisor.enabled (eq $values.run.successPolicy "AllWorkers") (eq $worker.restartPolicy "Always") $replicas -}}
{{- fail "worker.restartPolicy: with Always no worker ends, and run.successPolicy AllWorkers waits for all of them; use ExitCode, OnFailure or Never." -}}
{{- end -}}

{{- $listed := add $addresses (int $values.chief.replicas) | int -}}
{{- with $values.train -}}
{{- $aggregate := int (.replicas_to_aggregate | default $listed) -}}
{{- if and .sync_replicas (gt $aggregate $listed) -}}
{{- fail (printf "train.replicas_to_aggregate: a step would average %d gradients, but at most %d replicas compute them; set at most %d, or raise worker.maxReplicas." $aggregate $listed $listed) -}}
{{- end -}}
{{- if and (has .dataset (list "mnist" "npz" "lance")) (not $values.data.enabled) (not $values.data.uri) $packaged -}}
{{- fail (printf "data.enabled: it is false, but the data set %s of train.dataset is read from a volume; set data.enabled to true, and data.existingClaim to the claim that holds the data, or set data.uri." .dataset) -}}
{{- end -}}
{{- end -}}

{{- range $index, $rule := $values.run.failurePolicy.rules -}}
{{- if and $rule.onExitCodes $rule.onPodConditions -}}
{{- fail (printf "run.failurePolicy.rules[%d]: a rule has either onExitCodes or onPodConditions; write two rules." $index) -}}
{{- else if and $rule.onPodConditions (eq $rule.action "Restart") -}}
{{- fail (printf "run.failurePolicy.rules[%d].action: a pod that is disrupted is always replaced, and this does not count, so Restart has no effect with onPodConditions; use Ignore, RestartAll or Fail." $index) -}}
{{- end -}}
{{- end -}}

{{- range $key := list "trainingDirectory" "data" -}}
{{- $volume := get $values $key -}}
{{- if and $volume.nfs.server (not (hasPrefix "/" $volume.nfs.path)) -}}
{{- fail (printf "%s.nfs.path: %q is not an absolute path; set the exported path on %q, such as /exports/mnist." $key $volume.nfs.path $volume.nfs.server) -}}
{{- end -}}
{{- if and $volume.nfs.path (not $volume.nfs.server) -}}
{{- fail (printf "%s.nfs.server: it is not set; set the server that exports %q." $key $volume.nfs.path) -}}
{{- end -}}
{{- if and $volume.nfs.server $volume.existingClaim -}}
{{- fail (printf "%s.existingClaim: it is set together with %s.nfs, but only one of them can be mounted; remove one." $key $key) -}}
{{- end -}}
{{- end -}}
{{- range $key := list "trainingDirectory" "data" -}}
{{- if regexMatch "^[^:]+://[^/]*[:@]" (get $values $key).uri -}}
{{- fail (printf "%s.uri: it has a user, a password or a port, which a ConfigMap would show; set them as variables from a Secret instead, as in docs/storage.md." $key) -}}
{{- end -}}
{{- end -}}
{{- with $values.trainingDirectory.uri -}}
{{- if not (regexMatch "^(s3|gs|az)://[^/]+" .) -}}
{{- fail (printf "trainingDirectory.uri: %q is not an address on an object store; use one such as s3://bucket/runs/mnist." .) -}}
{{- end -}}
{{- if or $values.trainingDirectory.existingClaim $values.trainingDirectory.nfs.server -}}
{{- fail "trainingDirectory.uri: it is set together with a volume, but the training directory is in one place; remove trainingDirectory.existingClaim and trainingDirectory.nfs." -}}
{{- end -}}
{{- if int $values.evaluator.replicas -}}
{{- fail "evaluator.replicas: it is 1, but an evaluator needs a volume that it shares with the chief, and trainingDirectory.uri is set; set it to 0, as the chief evaluates too." -}}
{{- end -}}
{{- end -}}
{{- if not $values.trainingDirectory.enabled -}}
{{- if $packaged -}}
{{- fail (printf "trainingDirectory.enabled: %s runs the packaged trainer, which keeps its checkpoints there; set it to true." (first $packaged)) -}}
{{- end -}}
{{- if $values.tensorboard.enabled -}}
{{- fail "tensorboard.enabled: TensorBoard reads the training directory, but trainingDirectory.enabled is false; set both to true or both to false." -}}
{{- end -}}
{{- end -}}
{{- if has "ReadWriteOncePod" $values.trainingDirectory.accessModes -}}
{{- fail "trainingDirectory.accessModes: with ReadWriteOncePod only one pod can mount it, but the chief writes it and TensorBoard reads it; use ReadWriteOnce or ReadWriteMany." -}}
{{- end -}}
{{- if and $values.tensorboard.enabled $values.tensorboard.httpRoute.enabled (not $values.tensorboard.httpRoute.parentRefs) -}}
{{- fail "tensorboard.httpRoute.parentRefs: it is empty, but an HTTPRoute needs a Gateway; set it, such as [{name: my-gateway}]." -}}
{{- end -}}
{{- if and .Values.tensorboard.pathPrefix (not (hasPrefix "/" .Values.tensorboard.pathPrefix)) -}}
{{- fail (printf "tensorboard.pathPrefix: %q does not start with a slash; add one." .Values.tensorboard.pathPrefix) -}}
{{- end -}}
{{- end }}

{{/* The rules of run.elastic. */}}
{{- define "distributed-tensorflow.checkElastic" -}}
{{- $values := .Values -}}
{{- with $values.run.elastic -}}
{{- $worker := include "distributed-tensorflow.role" (dict "root" $ "role" "worker") | fromJson -}}
{{- $least := int .min -}}
{{- $most := int .max -}}
{{- if gt $least $most -}}
{{- fail (printf "run.elastic.min: %d is more than run.elastic.max, %d; lower it." $least $most) -}}
{{- end -}}
{{- if or (lt (int $worker.replicas) $least) (gt (int $worker.replicas) $most) -}}
{{- fail (printf "run.elastic: worker.replicas is %d, but the limits are %d to %d; set it to a number between them." (int $worker.replicas) $least $most) -}}
{{- end -}}
{{- if not $values.supervisor.enabled -}}
{{- fail "run.elastic: it is set, but supervisor.enabled is false, and the supervisor sets the number of workers; set it to true, or remove run.elastic." -}}
{{- end -}}
{{- if not (int $values.ps.replicas) -}}
{{- fail "run.elastic: ps.replicas is 0, but workers can only come and go while parameter servers hold the variables; set ps.replicas, or remove run.elastic." -}}
{{- end -}}
{{- if and (not $worker.packaged) (not $worker.maxReplicas) -}}
{{- fail (printf "run.elastic: worker.command is a program of your own; set worker.maxReplicas to %d to state that it trains while listed workers are absent, or remove run.elastic." $most) -}}
{{- end -}}
{{- if and $worker.maxReplicas (lt (int $worker.maxReplicas) $most) -}}
{{- fail (printf "run.elastic.max: %d is more than the %d addresses of worker.maxReplicas; remove worker.maxReplicas or raise it." $most (int $worker.maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- end }}
