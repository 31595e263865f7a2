{{/* What every task reads from /etc/distributed-tensorflow: the data of one ConfigMap, whose checksum is on the pods. */}}

{{- define "distributed-tensorflow.config" -}}
cluster.json: {{ include "distributed-tensorflow.cluster" . | quote }}
trainer.yaml: |
  {{- $train := deepCopy .Values.train }}
  {{- $_ := set $train "train_dir" .Values.trainingDirectory.path }}
  {{- if .Values.data.enabled }}{{ $_ := set $train "data_dir" .Values.data.path }}{{ end }}
  {{- /* Of 0.003 `helm --set` makes text */}}
  {{- range $name, $value := $train }}
  {{- if and (kindIs "string" $value) (regexMatch "^[0-9.]+(e-?[0-9]+)?$" (toString $value)) }}{{ $_ := set $train $name (float64 $value) }}{{ end }}
  {{- end }}
  {{- toYaml $train | nindent 2 }}
task.sh: |
  {{- .Files.Get "files/task.sh" | nindent 2 }}
ready.sh: |
  {{- .Files.Get "files/ready.sh" | nindent 2 }}
{{- end }}
