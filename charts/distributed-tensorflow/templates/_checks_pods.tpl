{{/* Checks of the pods: additional fields, resources, and the network. */}}

{{- define "distributed-tensorflow.checkPods" -}}
{{- $values := .Values -}}
{{- $keys := dict "containers" "sidecars" "volumes" "extraVolumes" "securityContext" "podSecurityContext" "serviceAccountName" "serviceAccount" -}}
{{- $owned := list "containers" "volumes" "tolerations" "affinity" "serviceAccountName" "serviceAccount" "restartPolicy" "hostname" "subdomain" -}}
{{- range $component := list "common" "chief" "worker" "ps" "evaluator" "client" "tensorboard" "supervisor" -}}
{{- $known := ternary (get $values $component) $values.common (has $component (list "tensorboard" "supervisor")) -}}
{{- range $field := keys (get (get $values $component) "podSpec" | default dict) | sortAlpha -}}
{{- $key := get $keys $field | default $field -}}
{{- /* `resources` is a field of the pod too, and a different one. */}}
{{- if and (hasKey $known $key) (ne $key "resources") -}}
{{- fail (printf "%s.podSpec.%s: this field has a key of its own; set %s.%s." $component $field $component $key) -}}
{{- else if has $field $owned -}}
{{- fail (printf "%s.podSpec.%s: the chart itself sets this field; remove it." $component $field) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- $specs := dict "supervisor" $values.supervisor "tensorboard" $values.tensorboard -}}
{{- $onHost := list -}}
{{- $onPodNetwork := list -}}
{{- range include "distributed-tensorflow.roles" . | fromJsonArray -}}
{{- $_ := set $specs .role . -}}
{{- if and (eq (toString .dnsPolicy) "None") (not (.dnsConfig | default dict).nameservers) -}}
{{- fail (printf "%s.dnsPolicy: with None a pod has only the name servers of dnsConfig, and there are none; set %s.dnsConfig, such as {nameservers: [10.96.0.10]}." .role .role) -}}
{{- end -}}
{{- if .hostNetwork }}{{ $onHost = append $onHost .role }}{{ else }}{{ $onPodNetwork = append $onPodNetwork .role }}{{ end -}}
{{- end -}}
{{- range $component, $spec := $specs -}}
{{- include "distributed-tensorflow.checkResources" (dict "component" $component "resources" ($spec.resources | default dict)) -}}
{{- end -}}
{{- if and $values.networkPolicy.enabled $onHost $onPodNetwork -}}
{{- fail (printf "%s.hostNetwork: it is true, but %s.hostNetwork is false, and the run's NetworkPolicy admits no pod on the network of a node; set both to the same value, or networkPolicy.enabled to false." (first $onHost) (first $onPodNetwork)) -}}
{{- end -}}
{{- end }}

{{/* (dict component resources) */}}
{{- define "distributed-tensorflow.checkResources" -}}
{{- $key := printf "%s.resources" .component -}}
{{- $resources := .resources -}}
{{- range $part := list "requests" "limits" -}}
{{- range $name, $quantity := get $resources $part | default dict -}}
{{- include "distributed-tensorflow.checkQuantity" (dict "key" (printf "%s.%s.%s" $key $part $name) "value" $quantity) -}}
{{- end -}}
{{- end -}}
{{- range $name, $request := $resources.requests -}}
{{- $limit := get ($resources.limits | default dict) $name | default $request -}}
{{- if gt (include "distributed-tensorflow.quantity" $request | float64) (include "distributed-tensorflow.quantity" $limit | float64) -}}
{{- fail (printf "%s.requests.%s: %s is more than %s of %s.limits.%s; lower the request or raise the limit." $key $name (toString $request) (toString $limit) $key $name) -}}
{{- end -}}
{{- end -}}
{{- end }}
