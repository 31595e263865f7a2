{{/* Who is in the cluster: the JSON that TF_CONFIG carries. The evaluator is no part of it, as TensorFlow expects. */}}

{{- define "distributed-tensorflow.cluster" -}}
{{- $stem := include "distributed-tensorflow.stem" . -}}
{{- $cluster := dict -}}
{{- range $role := list "chief" "worker" "ps" -}}
{{- $spec := include "distributed-tensorflow.role" (list $ $role) | fromYaml -}}
{{- $hosts := list -}}
{{- range $index := until (int $spec.addresses) -}}
{{- $hosts = append $hosts (printf "%s-%s-%d.%s-%s:%d" $stem $role $index $stem $role (int $.Values.port)) -}}
{{- end -}}
{{- if $hosts }}{{ $_ := set $cluster $spec.taskType $hosts }}{{ end -}}
{{- end -}}
{{- toJson $cluster -}}
{{- end }}

{{/* Whether TF_CONFIG would be longer than Linux lets one environment string be: 128 KiB with its name, the task and the
     closing zero, for which 200 bytes are set aside. */}}
{{- define "distributed-tensorflow.clusterIsTooLong" -}}
{{- if gt (len (include "distributed-tensorflow.cluster" .)) (sub 131072 200 | int) }}yes{{ end -}}
{{- end }}
