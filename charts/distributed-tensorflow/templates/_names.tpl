{{/* Names and labels. The name of every object is <fullname>-<word>, so two releases never share a name. */}}

{{- define "distributed-tensorflow.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name -}}
{{- end }}

{{/* The labels that select the pods of one component. (dict root component) */}}
{{- define "distributed-tensorflow.selectorLabels" -}}
{{- $root := .root -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{/* commonLabels or commonAnnotations as YAML, with their templates rendered. (dict root key) */}}
{{- define "distributed-tensorflow.common" -}}
{{- $root := .root -}}
{{- $map := dict -}}
{{- range $name, $value := get $root.Values .key | default dict -}}
{{- with $value }}{{ $_ := set $map $name (tpl . $root) }}{{ end -}}
{{- end -}}
{{- toYaml $map -}}
{{- end }}

{{/* The labels of an object. (dict root component), with an empty component for an object of the whole run */}}
{{- define "distributed-tensorflow.labels" -}}
{{- $root := .root -}}
{{- $labels := dict
  "app.kubernetes.io/version" $root.Chart.AppVersion
  "app.kubernetes.io/managed-by" $root.Release.Service
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_")
-}}
{{- include "distributed-tensorflow.merge" (list $labels (include "distributed-tensorflow.ownLabels" . | fromYaml)) -}}
{{- toYaml $labels -}}
{{- end }}

{{/* The labels of an object that the supervisor creates: those of an object of the chart, without what a new version of the
     chart changes. (dict root component) */}}
{{- define "distributed-tensorflow.ownLabels" -}}
{{- $labels := dict "app.kubernetes.io/part-of" "distributed-tensorflow" -}}
{{- include "distributed-tensorflow.merge" (list $labels (include "distributed-tensorflow.common" (dict "root" .root "key" "commonLabels") | fromYaml)) -}}
{{- include "distributed-tensorflow.merge" (list $labels (include "distributed-tensorflow.selectorLabels" . | fromYaml)) -}}
{{- toYaml $labels -}}
{{- end }}

{{/* The labels and annotations of an object. (dict root component annotations), with `isMade` if the supervisor creates it */}}
{{- define "distributed-tensorflow.labelsAndAnnotations" -}}
{{- $annotations := include "distributed-tensorflow.common" (dict "root" .root "key" "commonAnnotations") | fromYaml -}}
{{- include "distributed-tensorflow.merge" (list $annotations (.annotations | default dict)) -}}
labels:
  {{- include (ternary "distributed-tensorflow.ownLabels" "distributed-tensorflow.labels" (eq .isMade true)) . | nindent 2 }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The metadata of an object. (dict root component word annotations): the word defaults to the component */}}
{{- define "distributed-tensorflow.metadata" -}}
name: {{ include "distributed-tensorflow.fullname" .root }}-{{ .word | default .component }}
namespace: {{ .root.Release.Namespace }}
{{ include "distributed-tensorflow.labelsAndAnnotations" . }}
{{- end }}
