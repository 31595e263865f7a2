{{/* TensorBoard's values with derived keys. It mounts the training directory as the chief does, and uses the CPU image. */}}
{{- define "distributed-tensorflow.tensorboardSpec" -}}
{{- $spec := deepCopy .Values.tensorboard -}}
{{- $_ := set $spec "imagePullSecrets" ($spec.imagePullSecrets | default .Values.common.imagePullSecrets) -}}
{{- $_ := set $spec "sharesNode" (empty (include "distributed-tensorflow.trainingIsShared" .)) -}}
{{- toYaml $spec -}}
{{- end }}

{{/* Whether the supervisor starts TensorBoard after the chief has a node. Otherwise TensorBoard could bind a claim that only
     one node can mount to a node on which the chief does not fit. */}}
{{- define "distributed-tensorflow.tensorboardGated" -}}
{{- if and .Values.tensorboard.enabled .Values.supervisor.enabled (not (include "distributed-tensorflow.trainingIsShared" .)) }}yes{{ end -}}
{{- end }}

{{/* The URL of TensorBoard inside the cluster. */}}
{{- define "distributed-tensorflow.tensorboardUrl" -}}
http://{{ include "distributed-tensorflow.fullname" . }}-tensorboard:{{ .Values.tensorboard.service.port }}{{ trimSuffix "/" .Values.tensorboard.pathPrefix }}
{{- end }}
