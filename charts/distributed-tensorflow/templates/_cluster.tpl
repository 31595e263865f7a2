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

{{/* The roles of which a program of one's own has several hosts in its arguments, as a JSON list. Kubernetes inserts them
     there from a variable: a thousand hosts are 46 kB, and would be in each pod. (dict words) */}}
{{- define "distributed-tensorflow.rolesWithHosts" -}}
{{- $text := toJson .words -}}
{{- $roles := list -}}
{{- range $role := list "chief" "worker" "ps" "evaluator" -}}
{{- if contains (include "distributed-tensorflow.hostsVariable" $role | printf "$(%s)") $text }}{{ $roles = append $roles $role }}{{ end -}}
{{- end -}}
{{- toJson $roles -}}
{{- end }}

{{- define "distributed-tensorflow.hostsVariable" -}}
TASK_{{ upper . }}_HOSTS
{{- end }}

{{/* How many bytes the cluster may have in TF_CONFIG. Linux allows 128 KiB for one environment string, with its name and the
     terminating zero; `evaluator` is the longest type of a task. */}}
{{- define "distributed-tensorflow.clusterLimit" -}}
{{- $index := max (include "distributed-tensorflow.workerAddresses" . | int) (int .Values.ps.replicas) -}}
{{- sub 131071 (len (printf `TF_CONFIG={"cluster":,"task":{"type":"evaluator","index":%d},"environment":"cloud"}` $index)) -}}
{{- end }}

{{/* Whether TF_CONFIG would exceed Linux's limit for one environment string */}}
{{- define "distributed-tensorflow.clusterIsTooLong" -}}
{{- if gt (len (include "distributed-tensorflow.cluster" .)) (include "distributed-tensorflow.clusterLimit" . | int) }}yes{{ end -}}
{{- end }}

{{/* How many tasks of a role fit into TF_CONFIG beside those of the other roles. (list $ role) */}}
{{- define "distributed-tensorflow.tasksThatFit" -}}
{{- $root := index . 0 -}}
{{- $hosts := include "distributed-tensorflow.hosts" . | splitList "," -}}
{{- $others := sub (len (include "distributed-tensorflow.cluster" $root)) (len (toJson $hosts)) | int -}}
{{- $left := sub (include "distributed-tensorflow.clusterLimit" $root | int) (add $others 1) | int -}}
{{- $fit := 0 -}}
{{- $numbers := 10 -}}
{{- range $digits := list 1 2 3 4 5 -}}
{{- /* A host has quotes and a comma; the first one has an index of one digit. */}}
{{- $bytes := add (len (first $hosts)) $digits 2 | int -}}
{{- $more := min $numbers (div (max 0 $left) $bytes) | int -}}
{{- $fit = add $fit $more -}}
{{- $left = sub $left (mul $more $bytes) | int -}}
{{- $numbers = ternary 90 (mul $numbers 10) (eq $digits 1) | int -}}
{{- end -}}
{{- $fit -}}
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
