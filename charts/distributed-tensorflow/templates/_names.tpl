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

{{/* commonLabels or commonAnnotations as YAML, with their templates rendered. (list $ key) */}}
{{- define "distributed-tensorflow.common" -}}
{{- $root := index . 0 -}}
{{- $map := dict -}}
{{- range $name, $value := get $root.Values (index . 1) | default dict -}}
{{- with $value }}{{ $_ := set $map $name (tpl . $root) }}{{ end -}}
{{- end -}}
{{- toYaml $map -}}
{{- end }}

{{/* The labels of an object. (list $ component), with an empty component for an object of the whole run */}}
{{- define "distributed-tensorflow.labels" -}}
{{- $root := index . 0 -}}
{{- $labels := dict
  "app.kubernetes.io/part-of" "distributed-tensorflow"
  "app.kubernetes.io/version" $root.Chart.AppVersion
  "app.kubernetes.io/managed-by" $root.Release.Service
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_")
-}}
{{- include "distributed-tensorflow.merge" (list $labels (include "distributed-tensorflow.common" (list $root "commonLabels") | fromYaml)) -}}
{{- include "distributed-tensorflow.merge" (list $labels (include "distributed-tensorflow.selectorLabels" . | fromYaml)) -}}
{{- toYaml $labels -}}
{{- end }}

{{/* The labels and annotations of an object. (list $ component [annotations]) */}}
{{- define "distributed-tensorflow.labelsAndAnnotations" -}}
{{- $annotations := include "distributed-tensorflow.common" (list (index . 0) "commonAnnotations") | fromYaml -}}
{{- if eq (len .) 3 -}}
{{- include "distributed-tensorflow.merge" (list $annotations (index . 2 | default dict)) -}}
{{- end -}}
labels:
  {{- include "distributed-tensorflow.labels" . | nindent 2 }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The metadata of an object. (list $ component [word [annotations]]): the word defaults to the component */}}
{{- define "distributed-tensorflow.metadata" -}}
{{- $root := index . 0 -}}
{{- $word := index . 1 -}}
{{- $annotations := dict -}}
{{- if ge (len .) 3 }}{{ $word = index . 2 }}{{ end -}}
{{- if eq (len .) 4 }}{{ $annotations = index . 3 }}{{ end -}}
name: {{ include "distributed-tensorflow.fullname" $root }}-{{ $word }}
namespace: {{ $root.Release.Namespace }}
{{ include "distributed-tensorflow.labelsAndAnnotations" (list $root (index . 1) $annotations) }}
{{- end }}
