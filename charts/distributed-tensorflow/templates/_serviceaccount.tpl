{{/* A service account without permissions. Annotations can bind it to a cloud identity. (list $ component spec) */}}
{{- define "distributed-tensorflow.serviceAccount" }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "distributed-tensorflow.serviceAccountName" . }}
  namespace: {{ (index . 0).Release.Namespace }}
  labels:
    {{- include "distributed-tensorflow.labels" . | nindent 4 }}
  {{- with (index . 2).serviceAccount.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end }}
