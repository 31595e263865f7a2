{{/* Gangs, queues and placement: what `scheduling` adds to the pods of tasks. docs/scheduling.md explains the kinds. */}}

{{/* The kinds of scheduling.gang as JSON: the objects that they need, best first, and whether they have queues. */}}
{{- define "distributed-tensorflow.gangKinds" -}}
{{- dict
  "workload" (dict "apis" (list "scheduling.k8s.io/v1beta1/PodGroup" "scheduling.k8s.io/v1alpha2/PodGroup"))
  "kueue" (dict "apis" (list "kueue.x-k8s.io/v1beta2/Workload") "queue" "required")
  | toJson -}}
{{- end }}

{{/* The object that scheduling.gang needs and the cluster has, as GROUP/VERSION/KIND; empty if it has none. */}}
{{- define "distributed-tensorflow.gangApi" -}}
{{- $found := "" -}}
{{- range (get (include "distributed-tensorflow.gangKinds" . | fromJson) .Values.scheduling.gang | default dict).apis -}}
{{- if and (not $found) ($.Capabilities.APIVersions.Has .) }}{{ $found = . }}{{ end -}}
{{- end -}}
{{- $found -}}
{{- end }}

{{/* How many tasks of each role must start together, as JSON: with run.elastic, the fewest workers. A client is a Job, whose
     pods have no fixed names, so in a queue of Kueue it starts after the others, without quota. */}}
{{- define "distributed-tensorflow.gangMembers" -}}
{{- $members := dict -}}
{{- range include "distributed-tensorflow.roles" . | fromJsonArray -}}
{{- if not (and (eq .role "client") (eq $.Values.scheduling.gang "kueue")) -}}
{{- $least := ternary ($.Values.run.elastic | default dict).min nil (eq .role "worker") -}}
{{- $_ := set $members .role (int ($least | default .replicas)) -}}
{{- end -}}
{{- end -}}
{{- toJson $members -}}
{{- end }}

{{/* The number of tasks that must start together. */}}
{{- define "distributed-tensorflow.gangSize" -}}
{{- $size := 0 -}}
{{- range $role, $count := include "distributed-tensorflow.gangMembers" . | fromJson }}{{ $size = add $size $count }}{{ end -}}
{{- $size -}}
{{- end }}

{{/* The name of the run's PodGroup. In v1alpha2 of Kubernetes its size is immutable, so another size is another object. */}}
{{- define "distributed-tensorflow.podGroup" -}}
{{- $name := include "distributed-tensorflow.fullname" . -}}
{{- if contains "/v1alpha2/" (include "distributed-tensorflow.gangApi" .) }}{{ $name = printf "%s-%s" $name (include "distributed-tensorflow.gangSize" .) }}{{ end -}}
{{- $name -}}
{{- end }}

{{/* What of the gang is part of a run's identity, because tasks with another one would be another gang; empty if nothing. */}}
{{- define "distributed-tensorflow.gangIdentity" -}}
{{- if eq .Values.scheduling.gang "kueue" -}}
{{- printf "kueue %s %s %d" .Values.scheduling.queue (include "distributed-tensorflow.gangMembers" .) (int .Values.worker.replicas) -}}
{{- else if contains "/v1alpha2/" (include "distributed-tensorflow.gangApi" .) -}}
{{- include "distributed-tensorflow.podGroup" . -}}
{{- end -}}
{{- end }}

{{/* The values of a task with what `scheduling` adds to its pod, as JSON. (dict root spec) */}}
{{- define "distributed-tensorflow.scheduled" -}}
{{- $root := .root -}}
{{- $spec := .spec -}}
{{- $gang := $root.Values.scheduling.gang -}}
{{- if and (eq $gang "kueue") (ne $spec.role "client") -}}
{{- /* The supervisor removes the gate when Kueue has admitted the run. trainer/supervisor/kueue.py has the same name. */}}
{{- $fields := deepCopy ($spec.podSpec | default dict) -}}
{{- $gates := append ($fields.schedulingGates | default list) (dict "name" "distributed-tensorflow/queue") -}}
{{- $_ := set $spec "podSpec" (set $fields "schedulingGates" $gates) -}}
{{- else if eq $gang "workload" -}}
{{- $group := dict "schedulingGroup" (dict "podGroupName" (include "distributed-tensorflow.podGroup" $root)) -}}
{{- $_ := set $spec "podSpec" (merge $group ($spec.podSpec | default dict)) -}}
{{- end -}}
{{- toJson $spec -}}
{{- end }}
