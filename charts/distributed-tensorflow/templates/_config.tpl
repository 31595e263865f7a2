{{/* The data of the ConfigMap that every task mounts at /etc/distributed-tensorflow. */}}

{{- define "distributed-tensorflow.config" -}}
cluster.json: {{ include "distributed-tensorflow.cluster" . | quote }}
{{- $words := list }}
{{- range include "distributed-tensorflow.roles" . | fromJsonArray }}{{ $words = concat $words .program }}{{ end }}
{{- range include "distributed-tensorflow.rolesWithHosts" (dict "words" $words) | fromJsonArray }}
{{ . }}-hosts: {{ include "distributed-tensorflow.hosts" (list $ .) }}
{{- end }}
trainer.yaml: |
  {{- include "distributed-tensorflow.trainerSettings" (dict "root" . "train" .Values.train) | nindent 2 }}
task.sh: |
  {{- .Files.Get "files/task.sh" | nindent 2 }}
ready.sh: |
  {{- .Files.Get "files/ready.sh" | nindent 2 }}
{{- end }}

{{/* The trainer's configuration file: these values of `train`, and the settings that come from other values. (dict root train) */}}
{{- define "distributed-tensorflow.trainerSettings" -}}
{{- $train := deepCopy .train -}}
{{- with .root -}}
{{- $_ := set $train "train_dir" (include "distributed-tensorflow.runDirectory" .) -}}
{{- if or .Values.data.uri .Values.data.enabled -}}
{{- $_ := set $train "data_dir" (.Values.data.uri | default .Values.data.path) -}}
{{- end -}}
{{- with include "distributed-tensorflow.spareWorkers" . | int -}}
{{- $_ := set $train "spare_workers" . -}}
{{- end -}}
{{- /* A task does not see the GPUs of the others, and the steps of an epoch depend on them. */}}
{{- $gpus := int .Values.worker.gpus -}}
{{- if and (gt $gpus 1) (kindIs "invalid" $train.num_gpus) (or (not (int .Values.chief.replicas)) (eq $gpus (int .Values.chief.gpus))) -}}
{{- $_ := set $train "num_gpus" $gpus -}}
{{- end -}}
{{- toYaml $train -}}
{{- end -}}
{{- end }}

{{/* The checksum that each task's pod carries, so that another configuration restarts the tasks of a run without a supervisor.
     Of the chart's scripts and defaults it has nothing: others take effect at the next start of a task. */}}
{{- define "distributed-tensorflow.configChecksum" -}}
{{- $defaults := .Files.Get "files/defaults.json" | fromJson -}}
{{- $train := include "distributed-tensorflow.changed" (list .Values.train $defaults.train) | fromYaml -}}
{{- list (include "distributed-tensorflow.cluster" .) (include "distributed-tensorflow.trainerSettings" (dict "root" . "train" $train)) | join "\n" | sha256sum -}}
{{- end }}
