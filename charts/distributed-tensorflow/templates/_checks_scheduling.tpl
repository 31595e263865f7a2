{{/* Checks of gangs, queues and placement. */}}

{{- define "distributed-tensorflow.checkScheduling" -}}
{{- $values := .Values -}}
{{- $gang := $values.scheduling.gang -}}
{{- with get (include "distributed-tensorflow.gangKinds" . | fromJson) $gang -}}
{{- if and .apis (not (include "distributed-tensorflow.gangApi" $)) -}}
{{- fail (printf "scheduling.gang: it is %s, but the API %s is absent, so nothing would hold the tasks together; install or enable it as in docs/scheduling.md, pass --api-versions to `helm template` if the cluster has it, or remove scheduling.gang." $gang (first .apis)) -}}
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
