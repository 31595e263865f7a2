{{/* The client: a Job whose program is not a member of the cluster but connects to it. */}}

{{/* A Job's template is immutable, so a changed template needs a new name. */}}
{{- define "distributed-tensorflow.clientJob" -}}
{{ include "distributed-tensorflow.fullname" . }}-client-{{ include "distributed-tensorflow.clientTemplate" . | sha256sum | trunc 8 }}
{{- end }}

{{/* The immutable parts of the Job: its pod template, and its pod failure policy. */}}
{{- define "distributed-tensorflow.clientTemplate" -}}
{{- $spec := include "distributed-tensorflow.role" (dict "root" . "role" "client") | fromJson -}}
{{- if not .Values.supervisor.enabled -}}
podFailurePolicy:
  rules:
    - action: Ignore
      onPodConditions:
        - type: DisruptionTarget
          status: "True"
    {{- if ne $spec.restartPolicy "OnFailure" }}
    - action: FailJob
      onExitCodes:
        containerName: client
        operator: In
        values: {{ untilStep 1 (ternary 128 256 (eq $spec.restartPolicy "ExitCode")) 1 | toJson }}
    {{- end }}
{{ end -}}
template:
  {{- include "distributed-tensorflow.taskPod" (dict "root" . "spec" $spec) | nindent 2 }}
{{- end }}
