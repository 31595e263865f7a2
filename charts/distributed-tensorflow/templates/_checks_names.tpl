{{/* Checks of what the API server takes as a name, a label or an annotation. Its own error would name no key of the values. */}}

{{- define "distributed-tensorflow.checkNames" -}}
{{- $values := .Values -}}
{{- $tasks := list "common" "chief" "worker" "ps" "evaluator" "client" -}}
{{- $names := dict
  "trainingDirectory.storageClassName" (trimPrefix "-" $values.trainingDirectory.storageClassName)
  "data.storageClassName" (trimPrefix "-" $values.data.storageClassName)
  "mlflow.server.persistence.storageClassName" (trimPrefix "-" $values.mlflow.server.persistence.storageClassName)
  "mlflow.server.persistence.existingClaim" $values.mlflow.server.persistence.existingClaim
  "tensorboard.ingress.className" $values.tensorboard.ingress.className
-}}
{{- $labels := dict "metrics.podMonitor" $values.metrics.podMonitor "metrics.prometheusRule" $values.metrics.prometheusRule "metrics.dashboard" $values.metrics.dashboard -}}
{{- $annotations := dict
  "trainingDirectory" $values.trainingDirectory
  "data" $values.data
  "tensorboard.service" $values.tensorboard.service
  "tensorboard.ingress" $values.tensorboard.ingress
  "tensorboard.httpRoute" $values.tensorboard.httpRoute
  "serving.service" $values.serving.service
  "serving.httpRoute" $values.serving.httpRoute
-}}
{{- $pods := dict "mlflow.server" $values.mlflow.server "data.watch" $values.data.watch -}}
{{- range concat $tasks (list "tensorboard" "serving" "supervisor") }}{{ $_ := set $pods . (get $values .) }}{{ end -}}
{{- range $component, $spec := $pods -}}
{{- range $key := list "priorityClassName" "runtimeClassName" "schedulerName" -}}
{{- $_ := set $names (printf "%s.%s" $component $key) (get $spec $key) -}}
{{- end -}}
{{- $_ := set $names (printf "%s.serviceAccount.name" $component) (get ($spec.serviceAccount | default dict) "name") -}}
{{- $_ := set $labels $component $spec -}}
{{- $_ := set $annotations $component $spec -}}
{{- $_ := set $annotations (printf "%s.serviceAccount" $component) ($spec.serviceAccount | default dict) -}}
{{- include "distributed-tensorflow.checkLabels" (list (printf "%s.nodeSelector" $component) (get $spec "nodeSelector")) -}}
{{- end -}}

{{- $subdomain := "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*" -}}
{{- range $key, $name := $names -}}
{{- $text := $name | default "" | toString -}}
{{- if or (gt (len $text) 253) (not (regexMatch (printf "^(%s)?$" $subdomain) $text)) -}}
{{- fail (printf "%s: %q is no name of an object of Kubernetes; set at most 253 lower-case letters, digits, dashes and dots, such as high-priority." $key (trunc 300 $text)) -}}
{{- end -}}
{{- end -}}
{{- range $index, $host := $values.tensorboard.ingress.hosts -}}
{{- if or (gt (len $host) 253) (not (regexMatch (printf "^(\\*\\.)?%s$" $subdomain) $host)) -}}
{{- fail (printf "tensorboard.ingress.hosts[%d]: %q is no name of a host; set a name, such as tensorboard.example.com." $index $host) -}}
{{- end -}}
{{- end -}}
{{- range $volume := list "trainingDirectory" "data" -}}
{{- $path := (get $values $volume).subPath -}}
{{- if or (hasPrefix "/" $path) (has ".." (splitList "/" $path)) -}}
{{- fail (printf "%s.subPath: %q is no folder inside the volume; set a path without a leading slash and without .., such as team/mnist." $volume $path) -}}
{{- end -}}
{{- end -}}
{{- range $key, $spec := $labels -}}
{{- include "distributed-tensorflow.checkLabels" (list (printf "%s.labels" $key) (get $spec "labels")) -}}
{{- end -}}
{{- range $key, $spec := $annotations -}}
{{- include "distributed-tensorflow.checkKeysOfLabels" (list (printf "%s.annotations" $key) (get $spec "annotations")) -}}
{{- end -}}
{{- include "distributed-tensorflow.checkLabels" (list "commonLabels" (include "distributed-tensorflow.common" (list . "commonLabels") | fromYaml)) -}}
{{- include "distributed-tensorflow.checkKeysOfLabels" (list "commonAnnotations" .Values.commonAnnotations) -}}
{{- end }}

{{/* (list key labels) */}}
{{- define "distributed-tensorflow.checkLabels" -}}
{{- include "distributed-tensorflow.checkKeysOfLabels" . -}}
{{- $key := index . 0 -}}
{{- range $label, $value := index . 1 | default dict -}}
{{- if not (regexMatch "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$" ($value | default "")) -}}
{{- fail (printf "%s: %q is no value of a label (%s); set at most 63 letters, digits, dashes, underscores and dots." $key $value $label) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* (list key labels or annotations) */}}
{{- define "distributed-tensorflow.checkKeysOfLabels" -}}
{{- $key := index . 0 -}}
{{- range $label := keys (index . 1 | default dict) | sortAlpha -}}
{{- if not (regexMatch "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$" $label) -}}
{{- fail (printf "%s: %q is no key; set letters, digits, dashes, underscores and dots, with or without a domain and a slash before them, such as example.com/team." $key $label) -}}
{{- end -}}
{{- end -}}
{{- end }}
