{{/* A service account without permissions. Annotations can bind it to a cloud identity. (list $ component spec) */}}
{{- define "distributed-tensorflow.serviceAccount" }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "distributed-tensorflow.serviceAccountName" . }}
  namespace: {{ (index . 0).Release.Namespace }}
  {{- include "distributed-tensorflow.labelsAndAnnotations" (list (index . 0) (index . 1) (index . 2).serviceAccount.annotations) | nindent 2 }}
automountServiceAccountToken: false
{{- end }}
