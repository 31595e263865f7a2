{{/* Rules that the schema cannot express. Each refusal is one sentence that names the key and the rule. */}}

{{- define "distributed-tensorflow.checks" -}}
{{- $values := .Values -}}

{{- $stem := include "distributed-tensorflow.stem" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$" $stem) -}}
{{- fail (printf "fullnameOverride: %q (default: the release's name) cannot be the stem of all names: at most 40 lower-case letters, digits and dashes, the first one a letter and the last one no dash." $stem) -}}
{{- end -}}

{{- range $key := list "replicas" "maxReplicas" "gpus" "taskType" -}}
{{- if hasKey $values.common $key -}}
{{- fail (printf "common.%s: this is a role's own; set it in worker, ps, chief, evaluator or client." $key) -}}
{{- end -}}
{{- end -}}
{{- range $role := list "ps" "chief" "evaluator" "client" -}}
{{- if hasKey (get $values $role) "maxReplicas" -}}
{{- fail (printf "%s.maxReplicas: only workers can be added to a run; it is worker.maxReplicas." $role) -}}
{{- end -}}
{{- end -}}
{{- range $role := list "worker" "ps" "evaluator" "client" -}}
{{- if hasKey (get $values $role) "taskType" -}}
{{- fail (printf "%s.taskType: only the chief has another name in TF_CONFIG; it is chief.taskType." $role) -}}
{{- end -}}
{{- end -}}
{{- if hasKey $values.ps "gpus" -}}
{{- fail "ps.gpus: parameter servers hold variables and never use GPUs; remove the key." -}}
{{- end -}}
{{- range $role := list "chief" "evaluator" "client" -}}
{{- $replicas := int (get $values $role).replicas -}}
{{- if gt $replicas 1 -}}
{{- fail (printf "%s.replicas: %d were asked for, but a run has one %s at most: 0 or 1." $role $replicas $role) -}}
{{- end -}}
{{- end -}}

{{- $worker := include "distributed-tensorflow.role" (list . "worker") | fromYaml -}}
{{- $replicas := int $worker.replicas -}}
{{- $addresses := int $worker.addresses -}}
{{- if not (or $replicas (int $values.chief.replicas)) -}}
{{- fail "worker.replicas: 0 workers and no chief, so nobody would train; at least 1 worker, or chief.replicas: 1." -}}
{{- end -}}
{{- if gt $replicas $addresses -}}
{{- fail (printf "worker.replicas: %d workers are more than the %d addresses of worker.maxReplicas; raise that." $replicas $addresses) -}}
{{- end -}}

{{- $foreign := list -}}
{{- $packaged := list -}}
{{- range $role := list "chief" "worker" "ps" "evaluator" "client" -}}
{{- $spec := include "distributed-tensorflow.role" (list $ $role) | fromYaml -}}
{{- if $spec.replicas -}}
{{- if $spec.packaged }}{{ $packaged = append $packaged $role }}{{ else }}{{ $foreign = append $foreign $role }}{{ end -}}
{{- if and (not $spec.packaged) (not $spec.command) -}}
{{- fail (printf "%s.command: the image %s is not the packaged one, and the chart's wrapper hides an image's own entrypoint, so state its command; `docker image inspect -f '{{.Config.Entrypoint}} {{.Config.Cmd}}' IMAGE` shows it. (An image built FROM the packaged one is set in image.repository.)" $role $spec.image.repository) -}}
{{- end -}}
{{- if and $spec.packaged (eq $role "client") -}}
{{- fail "client.command: the packaged trainer is no client; state the program that connects to the cluster." -}}
{{- end -}}
{{- if and $spec.args (not $spec.command) -}}
{{- fail (printf "%s.args: these are the arguments of %s.command, which is not set; extraArgs are the packaged trainer's." $role $role) -}}
{{- end -}}
{{- if and $spec.packaged $spec.gpus $values.image.digest (not (($spec.image | default dict).digest)) -}}
{{- fail (printf "image.digest: it names the CPU image, and the tasks with GPUs need the GPU image; set %s.image.digest too." $role) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $strategy := $values.train.strategy | default "ps" -}}
{{- if $packaged -}}
{{- if has $strategy (list "mirrored" "local") -}}
{{- fail "train.strategy: mirrored is one process without a cluster, and the chart makes one; use ps or allreduce." -}}
{{- end -}}
{{- if and (eq $strategy "ps") (not (int $values.ps.replicas)) -}}
{{- fail "ps.replicas: the packaged trainer keeps its variables on parameter servers and needs at least 1, or train.strategy: allreduce." -}}
{{- end -}}
{{- if and (eq $strategy "allreduce") (int $values.ps.replicas) -}}
{{- fail (printf "ps.replicas: %d were asked for, but by train.strategy allreduce the replicas hold the variables themselves; set it to 0." (int $values.ps.replicas)) -}}
{{- end -}}
{{- if and (eq $strategy "allreduce") (gt $addresses $replicas) -}}
{{- fail (printf "worker.maxReplicas: by train.strategy allreduce each of the %d workers that are listed must take part, and worker.replicas are %d; leave it out." $addresses $replicas) -}}
{{- end -}}
{{- end -}}
{{- if and $foreign (include "distributed-tensorflow.clusterIsTooLong" .) -}}
{{- fail (printf "%s.replicas: TF_CONFIG would be longer than the 128 KiB that Linux allows in one environment variable; only the packaged trainer reads a cluster so large from a file. Use fewer tasks or a shorter release name." (first $foreign)) -}}
{{- end -}}

{{- $leader := include "distributed-tensorflow.role" (list . (include "distributed-tensorflow.leader" .)) | fromYaml -}}
{{- if and (or $values.supervisor.enabled (eq $leader.role "client")) (eq $leader.restartPolicy "Always") -}}
{{- fail (printf "%s.restartPolicy: with Always it never ends, and so the run never would; use ExitCode, OnFailure or Never." $leader.role) -}}
{{- end -}}

{{- if and $values.supervisor.enabled (eq $values.run.successPolicy "AllWorkers") (eq $worker.restartPolicy "Always") $replicas -}}
{{- fail "worker.restartPolicy: with Always no worker ever ends, and run.successPolicy AllWorkers waits for all of them; use ExitCode, OnFailure or Never." -}}
{{- end -}}

{{- $replicas := add $replicas (int $values.chief.replicas) | int -}}
{{- $listed := add $addresses (int $values.chief.replicas) | int -}}
{{- with $values.train -}}
{{- $aggregate := int (.replicas_to_aggregate | default $listed) -}}
{{- if and .sync_replicas (gt $aggregate $replicas) -}}
{{- fail (printf "train.replicas_to_aggregate: a step would wait for %d gradients, but only %d replicas compute them (%d addresses are listed); at most %d." $aggregate $replicas $listed $replicas) -}}
{{- end -}}
{{- if and (has (.dataset | default "digits") (list "mnist" "npz")) (not $values.data.enabled) $packaged -}}
{{- fail (printf "data.enabled: the data set %s of train.dataset is read from a volume; set data.enabled to true, and data.existingClaim to the claim that holds it." .dataset) -}}
{{- end -}}
{{- end -}}

{{- range $key := list "trainingDirectory" "data" -}}
{{- $volume := get $values $key -}}
{{- if and $volume.existingClaim (not (regexMatch "^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$" $volume.existingClaim)) -}}
{{- fail (printf "%s.existingClaim: %q is no name of a claim: lower-case letters, digits, dashes and dots." $key $volume.existingClaim) -}}
{{- end -}}
{{- if and $volume.nfs.server (not (hasPrefix "/" $volume.nfs.path)) -}}
{{- fail (printf "%s.nfs.path: the exported path on %s is missing, such as /exports/mnist." $key $volume.nfs.server) -}}
{{- end -}}
{{- if and $volume.nfs.path (not $volume.nfs.server) -}}
{{- fail (printf "%s.nfs.server: the server that exports %s is missing." $key $volume.nfs.path) -}}
{{- end -}}
{{- if and $volume.nfs.server $volume.existingClaim -}}
{{- fail (printf "%s.existingClaim: it is set together with %s.nfs; only one of them can be mounted." $key $key) -}}
{{- end -}}
{{- end -}}
{{- if not $values.trainingDirectory.enabled -}}
{{- if $packaged -}}
{{- fail (printf "trainingDirectory.enabled: %s runs the packaged trainer, which keeps its checkpoints there; set it to true." (first $packaged)) -}}
{{- end -}}
{{- if $values.tensorboard.enabled -}}
{{- fail "tensorboard.enabled: TensorBoard reads the training directory, and trainingDirectory.enabled is false; set one of them the other way." -}}
{{- end -}}
{{- end -}}
{{- if has "ReadWriteOncePod" $values.trainingDirectory.accessModes -}}
{{- fail "trainingDirectory.accessModes: ReadWriteOncePod lets one pod mount it, but the chief writes it and TensorBoard reads it; use ReadWriteOnce or ReadWriteMany." -}}
{{- end -}}
{{- if and $values.tensorboard.enabled $values.tensorboard.httpRoute.enabled (not $values.tensorboard.httpRoute.parentRefs) -}}
{{- fail "tensorboard.httpRoute.parentRefs: an HTTPRoute needs a Gateway, such as [{name: my-gateway}]." -}}
{{- end -}}
{{- if and .Values.tensorboard.pathPrefix (not (hasPrefix "/" .Values.tensorboard.pathPrefix)) -}}
{{- fail (printf "tensorboard.pathPrefix: %q must begin with a slash." .Values.tensorboard.pathPrefix) -}}
{{- end -}}
{{- end }}
