{{/* Checks of single values, wherever they are: names, labels, quantities, images. What the API server would refuse in the middle
     of an installation is refused before it, with the key of the values. */}}

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
  (list "scheduling.queue" $values.scheduling.queue "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$" "the name of a queue, such as research")
  (list "mlflow.experiment" $values.mlflow.experiment "^[^\\pC]*$" "a name of printable characters, such as digits")
  (list "mlflow.model" $values.mlflow.model "^[\\pL\\pN_ .-]*$" "letters, digits, underscores, dashes, dots and spaces, such as digits")
-}}
{{- range $formats -}}
{{- if not (regexMatch (index . 2) (index . 1)) -}}
{{- fail (printf "%s: %q is not valid; set %s." (index . 0) (index . 1) (index . 3)) -}}
{{- end -}}
{{- end -}}
{{- include "distributed-tensorflow.checkValue" (dict "path" "" "key" "" "value" (omit $values "extraObjects" "train" "commonLabels")) -}}
{{- include "distributed-tensorflow.checkLabels" (dict "key" "commonLabels" "labels" (include "distributed-tensorflow.common" (dict "root" . "key" "commonLabels") | fromYaml)) -}}
{{- end }}

{{/* Checks a value by its key, and the values in it. (dict path key value): `path` is that of the mapping, with a dot at its end,
     and empty at the top */}}
{{- define "distributed-tensorflow.checkValue" -}}
{{- $path := printf "%s%s" .path .key -}}
{{- $text := .value | default "" | toString -}}
{{- if has .key (list "labels" "nodeSelector") -}}
{{- include "distributed-tensorflow.checkLabels" (dict "key" $path "labels" .value) -}}
{{- else if has .key (list "annotations" "commonAnnotations") -}}
{{- include "distributed-tensorflow.checkKeysOfLabels" (dict "key" $path "labels" .value) -}}
{{- else if or (has .key (list "priorityClassName" "runtimeClassName" "schedulerName" "storageClassName" "className" "existingClaim")) (hasSuffix "serviceAccount.name" $path) -}}
{{- if or (gt (len $text) 253) (not (regexMatch (printf "^-?(%s)?$" (include "distributed-tensorflow.subdomain" .)) $text)) -}}
{{- fail (printf "%s: %q is not a name of an object of Kubernetes; set at most 253 lower-case letters, digits, dashes and dots, such as high-priority." $path (trunc 300 $text)) -}}
{{- end -}}
{{- else if and (eq .key "digest") (not (regexMatch "^(sha256:[0-9a-f]{64})?$" $text)) -}}
{{- fail (printf "%s: %q is not a digest; set sha256: and 64 hexadecimal digits." $path $text) -}}
{{- else if eq .key "registry" -}}
{{- $host := regexReplaceAll "^[a-z]*:?//" $text "" | trimSuffix "/" -}}
{{- if ne $text $host -}}
{{- fail (printf "%s: %q has a scheme or ends with a slash; write %q." $path $text $host) -}}
{{- end -}}
{{- else if and (eq .key "maxUnavailable") $text (not (regexMatch "^[0-9]+%?$" $text)) -}}
{{- fail (printf "%s: %q is neither a number nor a percentage; set one, such as 1." $path $text) -}}
{{- else if and (has .key (list "size" "sharedMemorySize")) $text -}}
{{- include "distributed-tensorflow.checkQuantity" (dict "key" $path "value" .value) -}}
{{- else if and (eq .key "subPath") (or (hasPrefix "/" $text) (has ".." (splitList "/" $text))) -}}
{{- fail (printf "%s: %q is not a folder inside the volume; set a path without a leading slash and without .., such as team/mnist." $path $text) -}}
{{- else if eq .key "hosts" -}}
{{- range $index, $host := .value -}}
{{- if or (gt (len $host) 253) (not (regexMatch (printf "^(\\*\\.)?%s$" (include "distributed-tensorflow.subdomain" .)) $host)) -}}
{{- fail (printf "%s[%d]: %q is not a name of a host; set a name, such as tensorboard.example.com." $path $index $host) -}}
{{- end -}}
{{- end -}}
{{- else if has .key (list "before" "after") -}}
{{- range $index, $item := .value -}}
{{- include "distributed-tensorflow.checkValue" (dict "path" "" "key" (printf "%s[%d]" $path $index) "value" $item) -}}
{{- end -}}
{{- else if and (kindIs "map" .value) (not (has .key (list "podSpec" "affinity" "parameters"))) -}}
{{- range $key, $value := .value -}}
{{- include "distributed-tensorflow.checkValue" (dict "path" (ternary "" (printf "%s." $path) (empty $path)) "key" $key "value" $value) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* A regular expression of what Kubernetes calls a DNS subdomain. */}}
{{- define "distributed-tensorflow.subdomain" -}}
[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*
{{- end }}

{{/* (dict key labels) */}}
{{- define "distributed-tensorflow.checkLabels" -}}
{{- include "distributed-tensorflow.checkKeysOfLabels" . -}}
{{- $key := .key -}}
{{- range $label, $value := .labels | default dict -}}
{{- if not (regexMatch "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$" ($value | default "")) -}}
{{- fail (printf "%s: %q is not a value of a label (%s); set at most 63 letters, digits, dashes, underscores and dots." $key $value $label) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* (dict key labels or annotations) */}}
{{- define "distributed-tensorflow.checkKeysOfLabels" -}}
{{- $key := .key -}}
{{- range $label := keys (.labels | default dict) | sortAlpha -}}
{{- if not (regexMatch "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$" $label) -}}
{{- fail (printf "%s: %q is not a key; set letters, digits, dashes, underscores and dots, with or without a domain and a slash before them, such as example.com/team." $key $label) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* (dict key value) */}}
{{- define "distributed-tensorflow.checkQuantity" -}}
{{- if not (include "distributed-tensorflow.quantity" .value) -}}
{{- fail (printf "%s: %q is not a quantity of Kubernetes; set a number with an optional unit, such as 500m, 2, 512Mi or 4G." .key (.value | toString)) -}}
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
