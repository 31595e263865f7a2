{{/* Checks of gangs, queues and placement. */}}

{{- define "distributed-tensorflow.checkScheduling" -}}
{{- $values := .Values -}}
{{- $gang := $values.scheduling.gang -}}
{{- $kind := get (include "distributed-tensorflow.gangKinds" . | fromJson) $gang | default dict -}}
{{- if and $values.scheduling.queue (not $kind.queue) -}}
{{- fail (printf "scheduling.queue: it is %q, but scheduling.gang is %q, which has no queues; set scheduling.gang to kueue, or remove scheduling.queue." $values.scheduling.queue $gang) -}}
{{- end -}}
{{- if and (eq $kind.queue "required") (not $values.scheduling.queue) -}}
{{- fail (printf "scheduling.queue: it is not set, but scheduling.gang is %s, and a run needs a queue there; set its name." $gang) -}}
{{- end -}}
{{- if and (eq $gang "kueue") (eq $values.scheduling.queue "default") -}}
{{- fail "scheduling.queue: it is default, and Kueue puts each StatefulSet and Job of a namespace with a LocalQueue of this name into it, so that the run would be counted twice; give the LocalQueue another name." -}}
{{- end -}}
{{- if and (eq $gang "kueue") (not $values.supervisor.enabled) -}}
{{- fail "scheduling.gang: it is kueue, but supervisor.enabled is false, and the supervisor asks Kueue for the place in the queue; set it to true." -}}
{{- end -}}
{{- with $kind -}}
{{- if and .apis (not (include "distributed-tensorflow.gangApi" $)) -}}
{{- fail (printf "scheduling.gang: it is %s, but the API %s is absent, so nothing would hold the tasks together; install or enable it as in docs/scheduling.md, pass --api-versions to `helm template` if the cluster has it, or remove scheduling.gang." $gang (first .apis)) -}}
{{- end -}}
{{- end -}}
{{- with $values.scheduling -}}
{{- if and (has .placement (list "pack" "exclusive")) (not .topologyKey) -}}
{{- fail (printf "scheduling.topologyKey: it is not set, but scheduling.placement is %s; set the label of nodes that names their rack or zone, such as topology.kubernetes.io/zone." .placement) -}}
{{- end -}}
{{- if and .topologyKey (not .placement) -}}
{{- fail (printf "scheduling.placement: it is not set, so scheduling.topologyKey %q has no effect; set spread, pack or exclusive." .topologyKey) -}}
{{- end -}}
{{- include "distributed-tensorflow.checkKeysOfLabels" (dict "key" "scheduling.topologyKey" "labels" (ternary (dict .topologyKey "") dict (not (empty .topologyKey)))) -}}
{{- end -}}
{{- if eq $values.scheduling.placement "spread" -}}
{{- range include "distributed-tensorflow.roles" . | fromJsonArray -}}
{{- if and .sharesNode (gt (int .replicas) 1) -}}
{{- fail (printf "scheduling.placement: it is spread, but only one node can mount the training directory, and each %s mounts it; set chief.replicas: 1, use trainingDirectory.accessModes: [ReadWriteMany], or remove scheduling.placement." .role) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq $gang "workload" -}}
{{- range $role := list "common" "chief" "worker" "ps" "evaluator" "client" -}}
{{- if hasKey (get (get $values $role) "podSpec" | default dict) "schedulingGroup" -}}
{{- fail (printf "%s.podSpec.schedulingGroup: the chart itself sets it, because scheduling.gang is workload; remove one of them." $role) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
