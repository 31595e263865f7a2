{{/* A service account without permissions. Annotations can bind it to a cloud identity. (dict root component spec) */}}
{{- define "distributed-tensorflow.serviceAccount" }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "distributed-tensorflow.serviceAccountName" . }}
  namespace: {{ .root.Release.Namespace }}
  {{- include "distributed-tensorflow.labelsAndAnnotations" (dict "root" .root "component" .component "annotations" .spec.serviceAccount.annotations) | nindent 2 }}
automountServiceAccountToken: false
{{- end }}
