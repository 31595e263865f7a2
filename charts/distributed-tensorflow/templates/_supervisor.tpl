{{/* The supervisor: the hash of a run, the file with its settings, and its pod template. */}}

{{/* The hash of all that defines a run. A different hash is a different run: it ends the previous one and starts from the
     last checkpoint. The hash excludes what may change during a run: replicas within maxReplicas, suspend, TensorBoard. */}}
{{- define "distributed-tensorflow.runHash" -}}
{{- $root := . -}}
{{- $parts := list (include "distributed-tensorflow.cluster" .) (toJson .Values.train) (toString .Values.run.attempt) -}}
{{- range $role := list "chief" "worker" "ps" "evaluator" "client" -}}
{{- $spec := include "distributed-tensorflow.role" (list $root $role) | fromYaml -}}
{{- if $spec.replicas -}}
{{- $what := pick $spec "program" "env" "envFrom" "restartPolicy" "gpus" -}}
{{- $parts = append $parts (printf "%s %s %s" $role (include "distributed-tensorflow.image" (list $root $spec.image $spec.gpus)) (toJson $what)) -}}
{{- end -}}
{{- end -}}
{{- join "\n" $parts | sha256sum | trunc 8 -}}
{{- end }}

{{/* A Job's template is immutable, so a changed template needs a new name. A changed run.json and a changed run.suspend
     need one too, because a new supervisor must take over. */}}
{{- define "distributed-tensorflow.supervisorJob" -}}
{{- $parts := list (include "distributed-tensorflow.run" .) (include "distributed-tensorflow.supervisorPod" .) (toString .Values.run.suspend) -}}
{{ include "distributed-tensorflow.fullname" . }}-run-{{ join "\n" $parts | sha256sum | trunc 8 }}
{{- end }}

{{- define "distributed-tensorflow.supervisorSpec" -}}
{{- $spec := deepCopy .Values.supervisor -}}
{{- $_ := set $spec "imagePullSecrets" ($spec.imagePullSecrets | default .Values.common.imagePullSecrets) -}}
{{- $_ := set $spec "talksToApi" true -}}
{{- toYaml $spec -}}
{{- end }}

{{/* The file that `trainer supervise` reads, without the name of its Job: the values of `run`, except those of the Job, and
     facts about the release. trainer/supervisor/run.py has the same names. */}}
{{- define "distributed-tensorflow.run" -}}
{{- $fullname := include "distributed-tensorflow.fullname" . -}}
{{- $roles := dict -}}
{{- range $role := list "chief" "worker" "ps" "evaluator" "client" -}}
{{- $spec := include "distributed-tensorflow.role" (list $ $role) | fromYaml -}}
{{- if $spec.replicas -}}
{{- $entry := pick $spec "replicas" "restartPolicy" -}}
{{- if eq $role "client" -}}
{{- $_ := set $entry "job" (include "distributed-tensorflow.clientJob" $) -}}
{{- end -}}
{{- $_ := set $roles $role $entry -}}
{{- end -}}
{{- end -}}
{{- $result := "" -}}
{{- if and .Values.tensorboard.enabled .Values.trainingDirectory.enabled -}}
{{- $result = printf "kubectl exec --namespace %s deployment/%s-tensorboard -- cat %s/result.json" .Release.Namespace $fullname .Values.trainingDirectory.path -}}
{{- end -}}
{{- $facts := dict
  "fullname" $fullname
  "chart" .Chart.Name
  "release" .Release.Name
  "hash" (include "distributed-tensorflow.runHash" .)
  "leader" (printf "%s-%s-0" $fullname (include "distributed-tensorflow.leader" .))
  "roles" $roles
  "tensorboardGated" (not (empty (include "distributed-tensorflow.tensorboardGated" .)))
  "resultCommand" ($result | default nil)
  "metricsPort" (ternary .Values.metrics.port nil .Values.metrics.enabled)
-}}
{{- merge $facts (omit .Values.run "suspend" "ttlSecondsAfterFinished") | toJson -}}
{{- end }}

{{- define "distributed-tensorflow.supervisorPod" -}}
{{- $spec := include "distributed-tensorflow.supervisorSpec" . | fromYaml -}}
metadata:
  {{- include "distributed-tensorflow.podMetadata" (list . "supervisor" $spec "{}") | nindent 2 }}
spec:
  {{- include "distributed-tensorflow.podSettings" (list . "supervisor" $spec "") | nindent 2 }}
  restartPolicy: Never
  containers:
    - name: supervisor
      {{- $image := include "distributed-tensorflow.supervisorImage" . }}
      image: {{ $image | quote }}
      imagePullPolicy: {{ include "distributed-tensorflow.pullPolicy" (list . $spec.image $image) }}
      command: [trainer, supervise, --run=/etc/distributed-tensorflow/run.json]
      env:
        - name: JOB_UID
          valueFrom:
            fieldRef:
              fieldPath: metadata.labels['batch.kubernetes.io/controller-uid']
        - name: HOME
          value: /home/trainer
        {{- with $spec.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if .Values.metrics.enabled }}
      ports:
        - name: metrics
          containerPort: {{ .Values.metrics.port }}
      {{- end }}
      {{- with $spec.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $spec.securityContext }}
      securityContext:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        - name: config
          mountPath: /etc/distributed-tensorflow
          readOnly: true
        {{- include "distributed-tensorflow.scratchMounts" $spec | nindent 8 }}
        {{- with $spec.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ include "distributed-tensorflow.fullname" . }}-supervisor
    {{- include "distributed-tensorflow.scratchVolume" $spec | nindent 4 }}
    {{- with $spec.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
