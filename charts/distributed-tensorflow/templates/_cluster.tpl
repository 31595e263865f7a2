{{/* Who is in the cluster: the JSON that TF_CONFIG carries. The evaluator is no part of it, as TensorFlow expects. */}}

{{- define "distributed-tensorflow.cluster" -}}
{{- $cluster := dict -}}
{{- range $role := list "chief" "worker" "ps" -}}
{{- with include "distributed-tensorflow.hosts" (list $ $role) -}}
{{- $_ := set $cluster ((get $.Values $role).taskType | default $role) (splitList "," .) -}}
{{- end -}}
{{- end -}}
{{- toJson $cluster -}}
{{- end }}

{{/* The addresses of a role, HOST:PORT,HOST:PORT. (list $ role) Values use it in arguments, so it reads nothing that
     depends on them. */}}
{{- define "distributed-tensorflow.hosts" -}}
{{- $root := index . 0 -}}
{{- $role := index . 1 -}}
{{- if not (has $role (list "chief" "worker" "ps" "evaluator")) -}}
{{- fail (printf "distributed-tensorflow.hosts: %q was given; chief, worker, ps or evaluator was expected." $role) -}}
{{- end -}}
{{- $stem := include "distributed-tensorflow.stem" $root -}}
{{- $spec := get $root.Values $role -}}
{{- range $index := until (int ($spec.maxReplicas | default $spec.replicas)) -}}
{{- if $index }},{{ end }}{{ printf "%s-%s-%d.%s-%s:%d" $stem $role $index $stem $role (int $root.Values.port) }}
{{- end -}}
{{- end }}

{{/* Whether TF_CONFIG would be longer than Linux lets one environment string be: 128 KiB with its name, the task and the
     closing zero, for which 200 bytes are set aside. */}}
{{- define "distributed-tensorflow.clusterIsTooLong" -}}
{{- if gt (len (include "distributed-tensorflow.cluster" .)) (sub 131072 200 | int) }}yes{{ end -}}
{{- end }}
