{{/* Names and labels. The name of every object is <fullname>-<word>, so two releases never share a name. */}}

{{- define "distributed-tensorflow.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name -}}
{{- end }}

{{/* The labels that select the pods of one component. (list $ component) */}}
{{- define "distributed-tensorflow.selectorLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
{{- with index . 1 }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{/* The labels of an object. (list $ component), with an empty component for an object of the whole run */}}
{{- define "distributed-tensorflow.labels" -}}
{{- $root := index . 0 -}}
{{ include "distributed-tensorflow.selectorLabels" . }}
app.kubernetes.io/part-of: distributed-tensorflow
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The metadata of an object. (list $ component [word]): the word defaults to the component */}}
{{- define "distributed-tensorflow.metadata" -}}
{{- $root := index . 0 -}}
{{- $word := index . 1 -}}
{{- if eq (len .) 3 }}{{ $word = index . 2 }}{{ end -}}
name: {{ include "distributed-tensorflow.fullname" $root }}-{{ $word }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "distributed-tensorflow.labels" (list $root (index . 1)) | nindent 2 }}
{{- end }}
