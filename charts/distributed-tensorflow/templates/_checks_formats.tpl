{{/* Checks of single values: names, quantities, registries. */}}

{{- define "distributed-tensorflow.checkFormats" -}}
{{- $values := .Values -}}
{{- $formats := list
  (list "gpu.resourceName" $values.gpu.resourceName "^[a-z0-9.-]+/[A-Za-z0-9._-]+$" "a resource with a domain, such as nvidia.com/gpu")
  (list "portName" $values.portName "^[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?$" "a port name of at most 15 lower-case letters, digits and dashes, such as grpc")
  (list "metrics.podMonitor.interval" $values.metrics.podMonitor.interval "^[0-9]+(ms|s|m|h)$" "a number with the unit ms, s, m or h, such as 15s")
  (list "trainingDirectory.path" $values.trainingDirectory.path "^/" "an absolute path, such as /training")
  (list "trainingDirectory.logs" $values.trainingDirectory.logs "^([A-Za-z0-9_-][A-Za-z0-9._-]*(/|$))*$" "a folder inside the training directory, such as logs")
  (list "data.watch.tag" $values.data.watch.tag "^([A-Za-z0-9._-]*[A-Za-z._-][A-Za-z0-9._-]*)?$" "letters, digits, dots, dashes and underscores, and not only digits, such as latest")
  (list "data.path" $values.data.path "^/" "an absolute path, such as /data")
  (list "serving.name" $values.serving.name "^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$" "at most 63 lower-case letters, digits and dashes, such as digits")
  (list "mlflow.experiment" $values.mlflow.experiment "^[^\\pC]*$" "a name of printable characters, such as digits")
  (list "mlflow.model" $values.mlflow.model "^[\\pL\\pN_ .-]*$" "letters, digits, underscores, dashes, dots and spaces, such as digits")
-}}
{{- range $component := list "common" "chief" "worker" "ps" "evaluator" "client" -}}
{{- with ((get $values $component).podDisruptionBudget | default dict).maxUnavailable -}}
{{- $formats = append $formats (list (printf "%s.podDisruptionBudget.maxUnavailable" $component) (toString .) "^[0-9]+%?$" "a number or a percentage, such as 1 or 25%") -}}
{{- end -}}
{{- end -}}
{{- $images := dict "image" $values.image "mlflow.image" ($values.mlflow.image | default dict) "data.watch.image" ($values.data.watch.image | default dict) "mlflow.server.image" ($values.mlflow.server.image | default dict) "serving.image" ($values.serving.image | default dict) -}}
{{- range $component := list "common" "chief" "worker" "ps" "evaluator" "client" "tensorboard" "supervisor" -}}
{{- $_ := set $images (printf "%s.image" $component) ((get $values $component).image | default dict) -}}
{{- end -}}
{{- range $index, $version := $values.serving.versions -}}
{{- $_ := set $images (printf "serving.versions[%d].image" $index) ($version.image | default dict) -}}
{{- end -}}
{{- range $key, $image := $images -}}
{{- $formats = append $formats (list (printf "%s.digest" $key) ($image.digest | default "") "^(sha256:[0-9a-f]{64})?$" "a digest, such as sha256: and 64 hexadecimal digits") -}}
{{- $registry := $image.registry | default "" -}}
{{- $host := regexReplaceAll "^[a-z]*:?//" $registry "" | trimSuffix "/" -}}
{{- if ne $registry $host -}}
{{- fail (printf "%s.registry: %q has a scheme or ends with a slash; write %q." $key $registry $host) -}}
{{- end -}}
{{- end -}}
{{- range $formats -}}
{{- if not (regexMatch (index . 2) (index . 1)) -}}
{{- fail (printf "%s: %q is not valid; set %s." (index . 0) (index . 1) (index . 3)) -}}
{{- end -}}
{{- end -}}
{{- include "distributed-tensorflow.checkQuantity" (list "trainingDirectory.size" $values.trainingDirectory.size) -}}
{{- include "distributed-tensorflow.checkQuantity" (list "data.size" $values.data.size) -}}
{{- include "distributed-tensorflow.checkQuantity" (list "mlflow.server.persistence.size" $values.mlflow.server.persistence.size) -}}
{{- end }}

{{/* (list key value) */}}
{{- define "distributed-tensorflow.checkQuantity" -}}
{{- if not (include "distributed-tensorflow.quantity" (index . 1)) -}}
{{- fail (printf "%s: %q is not a quantity of Kubernetes; set a number with an optional unit, such as 500m, 2, 512Mi or 4G." (index . 0) (index . 1 | toString)) -}}
{{- end -}}
{{- end }}

{{/* A quantity as a number: 0.5 for 500m, 1024 for 1Ki; empty if it is not a quantity. */}}
{{- define "distributed-tensorflow.quantity" -}}
{{- $text := toString . -}}
{{- $number := regexFind "^([0-9]+\\.?[0-9]*|\\.[0-9]+)" $text -}}
{{- $unit := trimPrefix $number $text -}}
{{- $units := dict "" 1 "n" 1e-9 "u" 1e-6 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18
  "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- if and $number (hasKey $units $unit) -}}
{{- mulf (float64 $number) (get $units $unit) -}}
{{- else if and $number (regexMatch "^[eE][-+]?[0-9]+$" $unit) -}}
{{- float64 $text -}}
{{- end -}}
{{- end }}
