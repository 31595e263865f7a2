{{/* A release that trains on each version of its data: the supervisor notes the version in the ConfigMap FULLNAME-ended, and
     starts the tasks and the stages of each version anew. */}}

{{/* The variable that tells a task or a stage the version, as YAML; empty without the watch. */}}
{{- define "distributed-tensorflow.dataVersion" -}}
{{- if .Values.data.watch.enabled -}}
- name: DATA_VERSION
  valueFrom:
    configMapKeyRef:
      name: {{ include "distributed-tensorflow.fullname" . }}-ended
      key: data_version
{{- end }}
{{- end }}

{{/* The values of the volume at trainingDirectory.path in tasks and stages, as JSON: each version has a folder of its own. */}}
{{- define "distributed-tensorflow.runVolume" -}}
{{- $values := deepCopy .Values.trainingDirectory -}}
{{- if .Values.data.watch.enabled -}}
{{- $base := $values.subPath | trimSuffix "/" | replace "$" "$$" -}}
{{- $_ := set (unset $values "subPath") "subPathExpr" (printf "%s/v$(DATA_VERSION)" $base | trimPrefix "/") -}}
{{- end -}}
{{- toJson $values -}}
{{- end }}

{{/* The place of the run's directory for the programs in tasks and stages: a path, or a URI. */}}
{{- define "distributed-tensorflow.runDirectory" -}}
{{- $uri := .Values.trainingDirectory.uri -}}
{{- if and $uri .Values.data.watch.enabled }}{{ $uri = printf "%s/v$(DATA_VERSION)" (trimSuffix "/" $uri) }}{{ end -}}
{{- $uri | default .Values.trainingDirectory.path -}}
{{- end }}
