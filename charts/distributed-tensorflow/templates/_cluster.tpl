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
{{- range $index := until (int ($spec.maxReplicas | default $spec.replicas)) -}}
{{- if $index }},{{ end }}{{ printf "%s-%s-%d.%s-%s:%d" $fullname $role $index $fullname $role (int $root.Values.port) }}
{{- end -}}
{{- end }}

{{/* Whether TF_CONFIG would exceed Linux's limit for one environment string: 128 KiB, of which 200 bytes are reserved for
     its name, the task and the terminating zero. */}}
{{- define "distributed-tensorflow.clusterIsTooLong" -}}
{{- if gt (len (include "distributed-tensorflow.cluster" .)) (sub 131072 200 | int) }}yes{{ end -}}
{{- end }}
