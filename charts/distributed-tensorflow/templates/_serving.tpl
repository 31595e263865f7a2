{{/* The values of served models with derived keys, which all versions share. */}}
{{- define "distributed-tensorflow.servingSpec" -}}
{{- $spec := deepCopy .Values.serving -}}
{{- $_ := set $spec "imagePullSecrets" ($spec.imagePullSecrets | default .Values.common.imagePullSecrets) -}}
{{- toYaml $spec -}}
{{- end }}
