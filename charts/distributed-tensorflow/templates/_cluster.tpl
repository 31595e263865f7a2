{{/* The cluster as JSON, for TF_CONFIG. It does not list the evaluator, as TensorFlow expects. */}}

{{- define "distributed-tensorflow.cluster" -}}
{{- $cluster := dict -}}
{{- range $role := list "chief" "worker" "ps" -}}
{{- with include "distributed-tensorflow.hosts" (list $ $role) -}}
{{- $_ := set $cluster ((get $.Values $role).taskType | default $role) (splitList "," .) -}}
{{- end -}}
{{- end -}}
{{- toJson $cluster -}}
{{- end }}

{{/* The addresses of a role, HOST:PORT,HOST:PORT. (list $ role) Arguments in the values use this helper, so it must not
     read anything that depends on arguments. */}}
{{- define "distributed-tensorflow.hosts" -}}
{{- $root := index . 0 -}}
{{- $role := index . 1 -}}
{{- if not (has $role (list "chief" "worker" "ps" "evaluator")) -}}
{{- fail (printf "distributed-tensorflow.hosts: %q is not a role with addresses; use chief, worker, ps or evaluator." $role) -}}
{{- end -}}
{{- $fullname := include "distributed-tensorflow.fullname" $root -}}
{{- $spec := get $root.Values $role -}}
{{- $count := int $spec.replicas -}}
{{- if eq $role "worker" }}{{ $count = include "distributed-tensorflow.workerAddresses" $root | int }}{{ end -}}
{{- range $index := until $count -}}
{{- if $index }},{{ end }}{{ printf "%s-%s-%d.%s-%s:%d" $fullname $role $index $fullname $role (int $root.Values.port) }}
{{- end -}}
{{- end }}

{{/* Whether TF_CONFIG would exceed Linux's limit for one environment string: 128 KiB, of which 200 bytes are reserved for
     its name, the task and the terminating zero. */}}
{{- define "distributed-tensorflow.clusterIsTooLong" -}}
{{- if gt (len (include "distributed-tensorflow.cluster" .)) (sub 131072 200 | int) }}yes{{ end -}}
{{- end }}

{{/* How many workers the cluster lists: worker.maxReplicas, or run.elastic.max. Without them, the packaged trainer with
     parameter servers lists twice as many as worker.replicas, at most 8 more, so that workers can be added. A program of the
     user may count the listed workers, as with TFJob. Like the addresses, this must not read anything that depends on
     arguments. */}}
{{- define "distributed-tensorflow.workerAddresses" -}}
{{- $values := .Values -}}
{{- $replicas := int $values.worker.replicas -}}
{{- $given := $values.worker.maxReplicas | default (($values.run.elastic | default dict).max) -}}
{{- if $given -}}
{{- int $given -}}
{{- else -}}
{{- add $replicas (include "distributed-tensorflow.spareWorkers" .) -}}
{{- end -}}
{{- end }}

{{/* Whether one replica is the whole cluster: a single process, which usually listens on no port. */}}
{{- define "distributed-tensorflow.isAlone" -}}
{{- $values := .Values -}}
{{- $listed := add (include "distributed-tensorflow.workerAddresses" .) (int $values.chief.replicas) | int -}}
{{- $others := add (int $values.ps.replicas) (int $values.client.replicas) | int -}}
{{- if and (eq $listed 1) (eq $others 0) (ne (toString $values.train.strategy) "allreduce") }}yes{{ end -}}
{{- end }}

{{/* How many workers the cluster lists by default that do not exist at first. */}}
{{- define "distributed-tensorflow.spareWorkers" -}}
{{- $values := .Values -}}
{{- $given := $values.worker.maxReplicas | default (($values.run.elastic | default dict).max) -}}
{{- $count := int $values.worker.replicas -}}
{{- if or $given (not $values.supervisor.enabled) (not (int $values.ps.replicas)) -}}
{{- $count = 0 -}}
{{- end -}}
{{- range $role := list "chief" "worker" "ps" "evaluator" "client" -}}
{{- $spec := get $values $role -}}
{{- $command := ternary $spec.command $values.common.command (hasKey $spec "command") -}}
{{- $repository := ($spec.image | default dict).repository | default (($values.common.image | default dict).repository) -}}
{{- if and (int $spec.replicas) (or $command $repository) -}}
{{- $count = 0 -}}
{{- end -}}
{{- end -}}
{{- min $count 8 -}}
{{- end }}
