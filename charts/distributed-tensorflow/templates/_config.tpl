{{/* The data of the ConfigMap that every task mounts at /etc/distributed-tensorflow. The pods carry its checksum. */}}

{{- define "distributed-tensorflow.config" -}}
cluster.json: {{ include "distributed-tensorflow.cluster" . | quote }}
{{- $words := list }}
{{- range include "distributed-tensorflow.roles" . | fromJsonArray }}{{ $words = concat $words .program }}{{ end }}
{{- range include "distributed-tensorflow.rolesWithHosts" (dict "words" $words) | fromJsonArray }}
{{ . }}-hosts: {{ include "distributed-tensorflow.hosts" (list $ .) }}
{{- end }}
trainer.yaml: |
  {{- $train := deepCopy .Values.train }}
  {{- $_ := set $train "train_dir" (include "distributed-tensorflow.runDirectory" .) }}
  {{- if or .Values.data.uri .Values.data.enabled }}
  {{- $_ := set $train "data_dir" (.Values.data.uri | default .Values.data.path) }}
  {{- end }}
  {{- with include "distributed-tensorflow.spareWorkers" . | int }}
  {{- $_ := set $train "spare_workers" . }}
  {{- end }}
  {{- /* A task does not see the GPUs of the others, and the steps of an epoch depend on them. */}}
  {{- $gpus := int .Values.worker.gpus }}
  {{- if and (gt $gpus 1) (kindIs "invalid" $train.num_gpus) (or (not (int .Values.chief.replicas)) (eq $gpus (int .Values.chief.gpus))) }}
  {{- $_ := set $train "num_gpus" $gpus }}
  {{- end }}
  {{- toYaml $train | nindent 2 }}
task.sh: |
  {{- .Files.Get "files/task.sh" | nindent 2 }}
ready.sh: |
  {{- .Files.Get "files/ready.sh" | nindent 2 }}
{{- end }}
