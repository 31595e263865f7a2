{{/* The training directory and the data: a claim that is made, one that exists, or NFS. */}}

{{/* Whether the training directory ties no pod to a node: every node can mount it at once, or there is none. */}}
{{- define "distributed-tensorflow.trainingIsShared" -}}
{{- with .Values.trainingDirectory }}
{{- if or (not .enabled) .nfs.server (has "ReadWriteMany" .accessModes) }}yes{{ end -}}
{{- end }}
{{- end }}

{{/* A volume. (list $ name values) */}}
{{- define "distributed-tensorflow.volume" -}}
{{- $name := index . 1 -}}
{{- $values := index . 2 -}}
- name: {{ $name }}
{{- if $values.nfs.server }}
  nfs:
    {{- toYaml $values.nfs | nindent 4 }}
{{- else }}
  persistentVolumeClaim:
    claimName: {{ $values.existingClaim | default (printf "%s-%s" (include "distributed-tensorflow.stem" (index . 0)) $name) | quote }}
{{- end }}
{{- end }}

{{/* Its mount. (list name values readOnly) */}}
{{- define "distributed-tensorflow.volumeMount" -}}
{{- $values := index . 1 -}}
- name: {{ index . 0 }}
  mountPath: {{ $values.path }}
  {{- with $values.subPath }}
  subPath: {{ . | quote }}
  {{- end }}
  {{- if index . 2 }}
  readOnly: true
  {{- end }}
{{- end }}

{{/* On every pod that mounts a training directory that only one node can mount. */}}
{{- define "distributed-tensorflow.onNodeLabel" -}}
distributed-tensorflow/training-directory
{{- end }}

{{/* The affinity of a pod, with the way to the node that has the training directory. (list $ affinity component)

     A task (component empty) goes where any pod of the run already mounts it, and may be the first one. The evaluator and
     the test go where the chief is, and so never before it: they would choose a node without asking whether the chief
     fits there. TensorBoard does so too, unless the supervisor starts it after the chief: then it goes where any pod is,
     and needs none when it is started again after the run. */}}
{{- define "distributed-tensorflow.affinityToTraining" -}}
{{- $root := index . 0 -}}
{{- $affinity := deepCopy (index . 1 | default dict) -}}
{{- $labels := include "distributed-tensorflow.selector" (list $root (index . 2)) | fromYaml -}}
{{- $_ := set $labels (include "distributed-tensorflow.onNodeLabel" .) "mounted" -}}
{{- $near := dict "labelSelector" (dict "matchLabels" $labels) "topologyKey" "kubernetes.io/hostname" -}}
{{- $pods := deepCopy ($affinity.podAffinity | default dict) -}}
{{- $required := append ($pods.requiredDuringSchedulingIgnoredDuringExecution | default list) $near -}}
{{- $_ := set $pods "requiredDuringSchedulingIgnoredDuringExecution" $required -}}
{{- $_ := set $affinity "podAffinity" $pods -}}
{{- toYaml $affinity -}}
{{- end }}

{{/* The component that leads the run: it initialises, saves and writes the result. */}}
{{- define "distributed-tensorflow.leader" -}}
{{- if int .Values.client.replicas }}client{{ else if int .Values.chief.replicas }}chief{{ else }}worker{{ end -}}
{{- end }}
