{{/* The training directory and the data: a new claim, an existing claim, or NFS. */}}

{{/* Whether the training directory binds no pod to a node: all nodes can mount it at once, or it is no
     volume. */}}
{{- define "distributed-tensorflow.trainingIsShared" -}}
{{- with .Values.trainingDirectory }}
{{- if or (not .enabled) .uri .nfs.server (has "ReadWriteMany" .accessModes) }}yes{{ end -}}
{{- end }}
{{- end }}

{{/* Whether the training directory is a volume: it is not if it is disabled, or on an object store. */}}
{{- define "distributed-tensorflow.trainingIsVolume" -}}
{{- if and .Values.trainingDirectory.enabled (not .Values.trainingDirectory.uri) }}yes{{ end -}}
{{- end }}

{{/* The values of each claim that the chart creates, as JSON: by the word in its name, with `key`, the place of the values. */}}
{{- define "distributed-tensorflow.claims" -}}
{{- $training := merge (dict "key" "trainingDirectory") .Values.trainingDirectory -}}
{{- $data := merge (dict "key" "data") (omit .Values.data "uri") -}}
{{- $claims := dict -}}
{{- range $word, $values := dict "training" $training "data" $data -}}
{{- if and $values.enabled (not $values.existingClaim) (not $values.nfs.server) (not $values.uri) }}{{ $_ := set $claims $word $values }}{{ end -}}
{{- end -}}
{{- toJson $claims -}}
{{- end }}

{{/* A volume. (dict root name values) */}}
{{- define "distributed-tensorflow.volume" -}}
{{- $name := .name -}}
{{- $values := .values -}}
- name: {{ $name }}
{{- if $values.nfs.server }}
  nfs:
    {{- toYaml $values.nfs | nindent 4 }}
{{- else }}
  persistentVolumeClaim:
    claimName: {{ $values.existingClaim | default (printf "%s-%s" (include "distributed-tensorflow.fullname" .root) $name) | quote }}
{{- end }}
{{- end }}

{{/* A volume mount. (dict name values readOnly) */}}
{{- define "distributed-tensorflow.volumeMount" -}}
{{- $values := .values -}}
- name: {{ .name }}
  mountPath: {{ $values.path | quote }}
  {{- range $key := list "subPath" "subPathExpr" }}
  {{- with get $values $key }}
  {{ $key }}: {{ . | quote }}
  {{- end }}
  {{- end }}
  {{- if .readOnly }}
  readOnly: true
  {{- end }}
{{- end }}

{{/* The label of every pod that mounts a training directory that only one node can mount. */}}
{{- define "distributed-tensorflow.onNodeLabel" -}}
distributed-tensorflow/training-directory
{{- end }}

{{/* The affinity of a pod, with the rule that it runs on the node of the training directory. (dict root affinity component)

     A task (component empty) runs on the node where a pod of the run already mounts the directory, or is the first one.
     The evaluator and the test run on the chief's node, and therefore never start before the chief: otherwise they would
     choose a node on which the chief may not fit. TensorBoard does the same, unless the supervisor starts it after the
     chief. Then it runs on the node of any pod that mounts the directory, and needs no such pod after the run. */}}
{{- define "distributed-tensorflow.affinityToTraining" -}}
{{- $root := .root -}}
{{- $affinity := deepCopy (.affinity | default dict) -}}
{{- $labels := include "distributed-tensorflow.selectorLabels" (dict "root" $root "component" .component) | fromYaml -}}
{{- $_ := set $labels (include "distributed-tensorflow.onNodeLabel" .) "mounted" -}}
{{- $near := dict "labelSelector" (dict "matchLabels" $labels) "topologyKey" "kubernetes.io/hostname" -}}
{{- $pods := deepCopy ($affinity.podAffinity | default dict) -}}
{{- $required := append ($pods.requiredDuringSchedulingIgnoredDuringExecution | default list) $near -}}
{{- $_ := set $pods "requiredDuringSchedulingIgnoredDuringExecution" $required -}}
{{- $_ := set $affinity "podAffinity" $pods -}}
{{- toYaml $affinity -}}
{{- end }}

{{/* The role that leads the run: it initialises the variables, saves checkpoints and writes the result. */}}
{{- define "distributed-tensorflow.leader" -}}
{{- if int .Values.client.replicas }}client{{ else if int .Values.chief.replicas }}chief{{ else }}worker{{ end -}}
{{- end }}

{{/* Where the run's files and its data are, as JSON: a run with another place is another run. */}}
{{- define "distributed-tensorflow.places" -}}
{{- $places := dict -}}
{{- range $key := list "trainingDirectory" "data" -}}
{{- $_ := set $places $key (pick (get $.Values $key) "enabled" "uri" "path" "existingClaim" "nfs" "subPath") -}}
{{- end -}}
{{- toJson $places -}}
{{- end }}
