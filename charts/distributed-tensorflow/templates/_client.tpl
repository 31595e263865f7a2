{{/* The client: a program that is in no cluster, connects to one from its own pod, and ends: a Job. */}}

{{/* A Job's template cannot be changed, so another one needs another name. */}}
{{- define "distributed-tensorflow.clientJob" -}}
{{ include "distributed-tensorflow.stem" . }}-client-{{ include "distributed-tensorflow.clientTemplate" . | sha256sum | trunc 8 }}
{{- end }}

{{/* What cannot be changed of the Job: its pod, and when that is tried again. */}}
{{- define "distributed-tensorflow.clientTemplate" -}}
{{- $spec := include "distributed-tensorflow.role" (list . "client") | fromYaml -}}
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
  {{- include "distributed-tensorflow.taskPod" (list . $spec) | nindent 2 }}
{{- end }}
