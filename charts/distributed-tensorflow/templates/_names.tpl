{{/* Names and labels. Every object is <stem>-<one word>, so two releases never share a name. */}}

{{- define "distributed-tensorflow.stem" -}}
{{- .Values.fullnameOverride | default .Release.Name -}}
{{- end }}

{{/* What selects the pods of one component. (list $ component) */}}
{{- define "distributed-tensorflow.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
{{- with index . 1 }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{/* (list $ component); an empty component for what belongs to the whole run */}}
{{- define "distributed-tensorflow.labels" -}}
{{- $root := index . 0 -}}
{{ include "distributed-tensorflow.selector" . }}
app.kubernetes.io/part-of: distributed-tensorflow
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* metadata of an object. (list $ component), and optionally its last word where that is not the component */}}
{{- define "distributed-tensorflow.metadata" -}}
{{- $root := index . 0 -}}
{{- $word := index . 1 -}}
{{- if eq (len .) 3 }}{{ $word = index . 2 }}{{ end -}}
name: {{ include "distributed-tensorflow.stem" $root }}-{{ $word }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "distributed-tensorflow.labels" (list $root (index . 1)) | nindent 2 }}
{{- end }}
